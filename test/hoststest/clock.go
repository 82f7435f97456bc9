package hoststest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
)

// ErrClock says that the clock of a process cannot be set on this machine.
var ErrClock = errors.New("a process's clock can be set on amd64 only")

// SetClock shifts what a process takes for the time of day, ahead of the machine's or, if
// negative, behind it, by whole seconds. Monotonic clocks are not affected. It works for
// programs that ask the kernel's vDSO, as Go programs do: while the process is stopped, the
// function there is overwritten, in this process alone, with one that makes the system call and
// adds the shift.
func SetClock(p *hosts.Process, ahead time.Duration) error {
	if runtime.GOARCH != "amd64" {
		return ErrClock
	}
	if err := setClock(p, ahead); err != nil {
		return fmt.Errorf("setting the clock of process %d on host %s: %w", p.Pid(), p.Host().Name, err)
	}
	return nil
}

// setClock stops the process until no thread is inside the function, so that none resumes in
// the middle of the new code.
func setClock(p *hosts.Process, ahead time.Duration) error {
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", p.Pid()), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	at, size, err := vdsoFunction(p.Pid(), mem, "__vdso_clock_gettime")
	if err != nil {
		return err
	}
	// A shift of 0 is written as code as well. The original function is not kept, and need not
	// be.
	code := shiftedClock(int64(ahead / time.Second))
	if uint64(len(code)) > size {
		return fmt.Errorf("the vDSO's function has %d bytes, the one in its place %d", size, len(code))
	}
	for range 5000 { // seconds
		if err := p.Pause(); err != nil {
			return err
		}
		clear, err := stoppedOutside(p.Pid(), at, size)
		// All threads have stopped outside the function: none can run while it is half written.
		if clear {
			_, err = mem.WriteAt(code, int64(at))
		}
		if err := errors.Join(err, p.Resume()); clear || err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("it asks for the time without pause")
}

// shiftedClock returns machine code for clock_gettime(clock in edi, timespec at rsi) by the
// system call, which adds seconds if the clock is CLOCK_REALTIME (0).
func shiftedClock(seconds int64) []byte {
	code := []byte{
		0x56,                         // push rsi
		0x57,                         // push rdi
		0xb8, 0xe4, 0x00, 0x00, 0x00, // mov eax, 228 (clock_gettime)
		0x0f, 0x05, // syscall
		0x5f,       // pop rdi
		0x5e,       // pop rsi
		0x85, 0xc0, // test eax, eax
		0x75, 0x13, // jnz to ret
		0x85, 0xff, // test edi, edi
		0x75, 0x0f, // jnz to ret
		0x48, 0xb9, // mov rcx, the seconds
	}
	code = binary.LittleEndian.AppendUint64(code, uint64(seconds))
	return append(code,
		0x48, 0x01, 0x0e, // add [rsi], rcx
		0x31, 0xc0, // xor eax, eax
		0xc3, // ret
	)
}

// vdsoFunction returns the address and size of a function in a process's vDSO, which is an ELF
// image in its memory.
func vdsoFunction(pid int, mem *os.File, name string) (at, size uint64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if !strings.HasSuffix(line, "[vdso]\n") {
			continue
		}
		var first, end uint64
		if _, err := fmt.Sscanf(line, "%x-%x", &first, &end); err != nil {
			return 0, 0, fmt.Errorf("its memory map says %q: %w", line, err)
		}
		image := make([]byte, end-first)
		if _, err := mem.ReadAt(image, int64(first)); err != nil {
			return 0, 0, fmt.Errorf("reading its vDSO: %w", err)
		}
		file, err := elf.NewFile(bytes.NewReader(image))
		if err != nil {
			return 0, 0, fmt.Errorf("its vDSO: %w", err)
		}
		symbols, err := file.DynamicSymbols()
		if err != nil {
			return 0, 0, fmt.Errorf("its vDSO: %w", err)
		}
		for _, s := range symbols {
			if s.Name == name {
				return first + s.Value, s.Size, nil
			}
		}
		return 0, 0, fmt.Errorf("its vDSO has no %s", name)
	}
	return 0, 0, errors.New("it has no vDSO")
}

// stoppedOutside waits until all threads of a process that was sent SIGSTOP have stopped, and
// reports whether none of them is inside a function.
func stoppedOutside(pid int, at, size uint64) (bool, error) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // a busy machine may run some thread late
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		if err != nil || len(threads) == 0 {
			return false, errors.Join(fs.ErrNotExist, err)
		}
		// The last field of the file is the thread's program counter, while the thread is
		// stopped.
		stopped, outside := true, true
		for _, t := range threads {
			text, err := os.ReadFile(filepath.Join(t, "syscall"))
			if errors.Is(err, fs.ErrNotExist) {
				continue // it has ended
			}
			if err != nil {
				return false, err
			}
			fields := strings.Fields(string(text))
			if len(fields) < 3 { // "running"
				stopped = false
				break
			}
			pc, err := strconv.ParseUint(fields[len(fields)-1], 0, 64)
			if err != nil {
				return false, fmt.Errorf("where a thread is: %q: %w", text, err)
			}
			outside = outside && (pc < at || pc >= at+size)
		}
		if stopped && allStopped(threads) {
			return outside, nil
		}
		if time.Now().After(end) {
			return false, errors.New("it does not stop")
		}
	}
}

// allStopped reports whether all threads are in state T. Threads that have ended do not count.
func allStopped(threads []string) bool {
	for _, t := range threads {
		stat, err := os.ReadFile(filepath.Join(t, "stat"))
		if err == nil && !strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " T") {
			return false
		}
	}
	return true
}
