"""Files of a gating: tables, event files, figures and the HTML report."""
