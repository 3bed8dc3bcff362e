"""JSON Schemas: one per config family, and those of the report and the settings."""
