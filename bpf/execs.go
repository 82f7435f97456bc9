// This part tells which processes have just begun to run a program, as soon
// as they do, by a program at the kernel's sched_process_exec tracepoint.
//
// Nothing comes in; process ids come out ([Watch.Next]), those that the kernel
// has in its first namespace. The agent calls it, to find a job's processes
// before they connect. Nothing is pinned. Linux 5.8, CAP_BPF and CAP_PERFMON.

package bpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
)

// room is the size of the ring buffer, for some 4,000 processes. Events that do not
// fit are dropped.
const room = 64 << 10

// An ExecWatch is attached until it is closed, or its process ends.
type ExecWatch struct {
	ring   *ebpf.Map
	attach link.Link
	reader *ringbuf.Reader
}

// OpenExecWatch attaches the program.
func OpenExecWatch() (w *ExecWatch, err error) {
	if err := rlimit.RemoveMemlock(); err != nil { // maps count before 5.11
		return nil, fmt.Errorf("raising the memlock limit: %w", err)
	}
	w = &ExecWatch{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	w.ring, err = ebpf.NewMap(&ebpf.MapSpec{Name: "psd_execs", Type: ebpf.RingBuf, MaxEntries: room})
	if err != nil {
		return w, fmt.Errorf("making a ring buffer: %w", err)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "psd_execs", Type: ebpf.RawTracepoint, License: "Dual MIT/GPL", Instructions: instructions(w.ring.FD()),
	})
	if err != nil {
		return w, fmt.Errorf("loading the program at exec: %w", err)
	}
	defer program.Close() // the link holds it
	w.attach, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sched_process_exec", Program: program})
	if err != nil {
		return w, fmt.Errorf("attaching to sched_process_exec: %w", err)
	}
	if w.reader, err = ringbuf.NewReader(w.ring); err != nil {
		return w, fmt.Errorf("reading the ring buffer: %w", err)
	}
	return w, nil
}

// instructions put the process's number into the ring buffer.
func instructions(ring int) asm.Instructions {
	return asm.Instructions{
		asm.FnGetCurrentPidTgid.Call(),
		asm.RSh.Imm(asm.R0, 32),
		asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
		asm.LoadMapPtr(asm.R1, ring),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -8),
		asm.Mov.Imm(asm.R3, 8),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}
}

// Next waits for the next process. The error is ctx's when that ends.
func (w *ExecWatch) Next(ctx context.Context) (pid int, err error) {
	// Flush, since a deadline can only be set while nobody reads.
	stop := context.AfterFunc(ctx, func() { _ = w.reader.Flush() })
	defer stop()
	for {
		record, err := w.reader.Read()
		switch {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case errors.Is(err, ringbuf.ErrFlushed):
			continue // meant for a call before this one
		case err != nil:
			return 0, fmt.Errorf("reading what was executed: %w", err)
		case len(record.RawSample) < 8:
			return 0, fmt.Errorf("reading what was executed: a record of %d bytes", len(record.RawSample))
		}
		return int(binary.NativeEndian.Uint64(record.RawSample)), nil
	}
}

// Close detaches the program. Next must not be running.
func (w *ExecWatch) Close() error {
	var failed error
	if w.reader != nil {
		failed = errors.Join(failed, w.reader.Close())
	}
	if w.attach != nil {
		failed = errors.Join(failed, w.attach.Close())
	}
	if w.ring != nil {
		failed = errors.Join(failed, w.ring.Close())
	}
	return failed
}
