"""Text templates: a scanner for {{ fields }}, filters, and a renderer."""
