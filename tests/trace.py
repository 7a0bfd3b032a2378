# SPDX-License-Identifier: MIT
"""Reads a Stackpipe trace with the strict reader of tests/golden and names its frames, independently of the C++ reader.

Only what stands before a sample in the file is used to name it: that is what the format promises.
"""
import bisect
import collections
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden"))
import ntread  # noqa: E402

RUNTIME = "Microsoft-Windows-DotNETRuntime"
RUNDOWN = "Microsoft-Windows-DotNETRuntimeRundown"
SAMPLES = "Microsoft-DotNETCore-SampleProfiler"
STACKPIPE = "Stackpipe"
KINDS = ["unknown", "native", "jit", "aot", "interpreter", "wrapper", "trampoline", "kernel"]

Method = collections.namedtuple("Method", "id start end name kind module")
Sample = collections.namedtuple("Sample", "time tid type flags weight frames")


def z16(data, at):
    end = at
    while data[end:end + 2] != b"\0\0":
        end += 2
    return data[at:end].decode("utf-16-le"), end + 2


def varuint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


class Trace:
    """A whole trace: .samples with named frames (a Method, or the bare pc), .events by provider and id, .dropped."""

    def __init__(self, path, cut=False):
        with open(path, "rb") as file:
            reader = ntread.Reader(file.read())
        self.complete = True
        try:
            reader.run()
        except ntread.Err:
            if not cut:
                raise
            self.complete = False
        self.dropped = reader.drop
        self.events = collections.Counter()
        self.samples = []
        self.phases = []   # (time, module id, phase, path, guid)
        self.unloads = []  # (time, path)
        self.threads = {}
        self.totals = {}
        self.session = None
        self.end = None
        self._kinds = {}
        self._modules = {}
        self._starts = []
        self._live = {}
        for event in reader.out:
            self._event(event)

    def _event(self, e):
        provider, number = e["m"][0], e["m"][1]
        data = e["payload"]
        self.events["%s/%d" % (provider, number)] += 1
        if provider == SAMPLES:
            kind = struct.unpack_from("<i", data)[0]
            flags, at = data[4], 5
            weight, at = varuint(data, at)
            self.samples.append(Sample(e["ts"], e["tid"], kind, flags, weight, [self._name(pc) for pc in e["ips"]]))
        elif provider == RUNTIME and number in (143, 144):
            method_id, module, start, size = struct.unpack_from("<QQQI", data)
            space, at = z16(data, 36)
            name, at = z16(data, at)
            signature, at = z16(data, at)
            if number == 143:
                full = space + "." + name + signature[signature.find("("):]
                self._insert(Method(method_id, start, start + size, full, KINDS[self._kinds.get(method_id, 0)],
                                    self._modules.get(module, "?")))
            else:
                self._remove(start)
        elif provider == RUNTIME and number in (152, 153):
            module = struct.unpack_from("<Q", data)[0]
            path, _ = z16(data, 24)
            if number == 152:
                self._modules[module] = os.path.basename(path)
            else:
                self.unloads.append((e["ts"], path))
        elif provider == STACKPIPE:
            self._stackpipe(number, data, e["ts"])

    def _stackpipe(self, number, data, time):
        if number == 1:
            mode, at = z16(data, 4)
            self.session = dict(mode=mode, period=struct.unpack_from("<q", data, at)[0])
        elif number == 2:
            self.threads[struct.unpack_from("<i", data)[0]] = z16(data, 4)[0]
        elif number == 3:
            method_id, kind = struct.unpack_from("<Qi", data)
            self._kinds[method_id] = kind
        elif number == 4:
            tid, *totals = struct.unpack_from("<iQQQQ", data)
            self.totals.setdefault(tid, []).append(totals)
        elif number == 5:
            self.end = struct.unpack_from("<9Q", data)
        elif number == 6:
            module, phase = struct.unpack_from("<Qi", data)
            path, at = z16(data, 12)
            guid, at = z16(data, at)
            self.phases.append((time, module, phase, path, guid))

    def _insert(self, method):
        at = bisect.bisect_left(self._starts, method.start)
        for near in self._starts[max(at - 1, 0):at + 1]:
            other = self._live[near]
            assert other.end <= method.start or method.end <= other.start, "overlap: %s and %s" % (other, method)
        self._starts.insert(at, method.start)
        self._live[method.start] = method

    def _remove(self, start):
        del self._live[start]
        self._starts.pop(bisect.bisect_left(self._starts, start))

    def _name(self, pc):
        at = bisect.bisect_right(self._starts, pc) - 1
        if at >= 0 and pc < self._live[self._starts[at]].end:
            return self._live[self._starts[at]]
        return pc

    # A frame that nobody could name counts as managed: losing names must show.
    def managed(self):
        frames = [f for s in self.samples for f in s.frames if not isinstance(f, Method) or f.kind != "native"]
        return len(frames), sum(isinstance(f, Method) for f in frames)

    def kinds(self):
        return collections.Counter(f.kind for s in self.samples for f in s.frames if isinstance(f, Method))
