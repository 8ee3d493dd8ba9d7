"""Evaluation: loaded teams, reports, audits of credit, and serving a team."""
