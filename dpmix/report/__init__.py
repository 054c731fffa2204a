"""What is written of populations: tables, event files, figures and the report page."""
