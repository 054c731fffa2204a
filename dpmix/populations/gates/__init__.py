"""Gates in two channels that separate populations, and gates drawn by hand."""
