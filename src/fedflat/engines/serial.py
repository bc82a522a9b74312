"""One client after the other, in this process and on one thread."""

from .engine import Assignments, Results, Work, keep_pages, one_thread


class Serial:
    """The engine to debug with, and the one whose numbers all others have to give."""

    name = "serial"

    def open(self, work: Work) -> None:
        """Get ready for many rounds of this work."""
        self.work = work
        keep_pages()

    def train(self, assignments: Assignments) -> Results:
        """Do the work of one round."""
        for job, memory in assignments:
            with one_thread():
                result = self.work(job, memory)
            yield result

    def close(self) -> None:
        """Nothing is held."""
