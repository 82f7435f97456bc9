// Package bpf watches PS-lite traffic from inside the kernel without touching it. Programs on
// the cgroup_skb hooks of a job's cgroup see every TCP segment that its processes send (and,
// where asked, receive), follow the ZMTP frames of each connection, and copy out the frames
// that show which worker uses which parameter: the meta frame of every message, and the key and
// lens frames of sampled requests. Values are stepped over and counted. The programs always let
// the packet pass. Whatever they could not examine is counted with its reason ([Reason]).
//
// # Use
//
// [Open] loads the programs, [Capture.Attach] attaches them to a cgroup, [Capture.SetSampling]
// sets the sampling rate ([Sampling]). [Capture.Read] returns [Record]s, [Capture.Streams]
// exact totals for each direction of a connection, [Capture.Counts] the counters, and
// [Capture.ProgramStats] the programs' own run time. Nothing is pinned: when the process ends,
// however it ends, nothing stays attached.
//
// # Parts
//
// capture.c has the programs; they find or create the state of a stream, align the segment with
// what was seen, and run the tracker (tracker.h), which follows frames across segments of any
// size. Records are gathered in a batch (out.h) and written to the ring buffer, one batch a
// segment. On the Go side, ring.go reads the ring buffer in place and read.go splits batches
// into records. The formats are in wire.h. internal/wire/zmtp parses the same language in Go, and a
// test compares the two.
//
// The object compiled from the C sources by go generate is committed, so building needs no
// clang. Comments in the C sources are part of its line information: a change that adds or
// removes lines needs go generate.
//
// # Probes
//
// [CheckFacts] reports what psidecar needs of a host and whether the host has it. [GatherFacts]
// collects the facts: kernel release, capabilities, mounts, and the kernel's answer to loading
// a program that uses a feature. Each [Finding] says what to do and what works without it.
// Facts are plain data, so those of a host can be recorded and judged elsewhere. psidecar
// doctor and the agent use them.
package bpf

//go:generate go run ./internal/reasons
//go:generate go tool bpf2go -target bpfel -cc clang -strip llvm-strip -go-package bpf capture capture.c -- -O2 -mcpu=v3 -Wall -Werror -Wno-unused-function
