"""Two sides of a change (files, folders, saved reports, revisions of a tree), and what each run takes on either."""
