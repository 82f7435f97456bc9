// This file reports which processes have just executed a program, by a BPF program at the
// kernel's sched_process_exec tracepoint.
//
// [ExecWatch.Next] returns PIDs as numbered in the initial PID namespace. The agent uses it to
// find a job's processes before they connect. The program is assembled here, since it is
// shorter than the C for it would be. Nothing is pinned. It needs Linux 5.8, CAP_BPF and
// CAP_PERFMON.

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

// room is the size of the ring buffer in bytes, enough for some 4,000 events. More are dropped;
// the agent's periodic scan finds their processes.
const room = 64 << 10

// An ExecWatch reports execs until it is closed or its process ends.
type ExecWatch struct {
	ring   *ebpf.Map
	attach link.Link
	reader *ringbuf.Reader
}

// OpenExecWatch attaches the program. Events are kept from now on.
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

// instructions returns a program that writes the current process's PID, 8 bytes, to the ring
// buffer. bpf_get_current_pid_tgid returns the process's number in its upper half.
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

// Next blocks until a process executes a program, and returns its PID. The error is ctx's when
// ctx ends. It must not be called concurrently. The process may have ended by the time it
// returns.
func (w *ExecWatch) Next(ctx context.Context) (pid int, err error) {
	// Flush interrupts a Read. A deadline could only be set while nobody reads.
	stop := context.AfterFunc(ctx, func() { _ = w.reader.Flush() })
	defer stop()
	for {
		record, err := w.reader.Read()
		switch {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case errors.Is(err, ringbuf.ErrFlushed):
			continue // left over from an earlier call
		case err != nil:
			return 0, fmt.Errorf("reading an exec record: %w", err)
		case len(record.RawSample) < 8:
			return 0, fmt.Errorf("reading an exec record: %d bytes", len(record.RawSample))
		}
		return int(binary.NativeEndian.Uint64(record.RawSample)), nil
	}
}

// Close detaches the program and releases everything. Next must have returned.
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
