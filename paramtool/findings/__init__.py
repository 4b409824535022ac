"""Findings as other programs take them: GitHub's annotations, SARIF, JUnit and Markdown."""
