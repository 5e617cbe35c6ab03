"""What stands in for a GPU and a clock where measuring itself is tested: the times are made up."""

import contextlib


class FakeGpu:
    """A GPU whose calls take as long as they are told to, and whose host needs a lead of some passes to queue them."""

    memory = 10**9
    fp32_tflops = 60.0

    def __init__(self):
        self.time = 0.0  # milliseconds
        self.seconds = 0.0  # of the host
        self.lead = 0
        self.needed = 0

    def call(self, ms, needs=0):
        """Return a call that takes some milliseconds, and a lead of so many passes to be queued in time."""

        def run():
            self.time += ms
            self.seconds += ms / 1e3
            self.needed = needs
            return ()

        return run

    def now(self):
        return self.seconds

    def occupy(self, passes):
        self.lead = passes

    def mark(self):
        return self.time

    def has_passed(self, event):
        return self.lead < self.needed

    def milliseconds(self, start, end):
        return end - start

    def synchronize(self):
        pass

    def keep(self):
        return contextlib.nullcontext()

    def free(self):
        pass
