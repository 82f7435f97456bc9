package life

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
)

// cut takes a host off the network for a while. Connections stay, and what is under way is sent
// again.
type cut struct {
	host int
	span time.Duration
}

func (e cut) kind() string { return "cut a link" }
func (e cut) String() string {
	return fmt.Sprintf("cut host%d's link for %.1f s", e.host, e.span.Seconds())
}
func (e cut) possible(*Life) error { return nil }

// happen cuts the link and heals it. TCP retransmits what was in flight, with pauses that
// double, so that a job may wait for as long again.
func (e cut) happen(ctx context.Context, l *Life) error {
	defer l.harms.begin(e.String(), harmful{holds: true})()
	h := l.fleet.net.Host(e.host)
	if err := h.Cut(); err != nil {
		return err
	}
	pause(ctx, e.span)
	return h.Heal()
}

// fill leaves no room on a host's disk, or the planner's, for a while.
type fill struct {
	host int // that of the planner where it is negative
	span time.Duration
}

func (e fill) kind() string { return "fill a disk" }

// String returns whose disk.
func (e fill) String() string {
	if e.host < 0 {
		return fmt.Sprintf("fill the planner's disk for %.1f s", e.span.Seconds())
	}
	return fmt.Sprintf("fill host%d's disk for %.1f s", e.host, e.span.Seconds())
}
func (e fill) possible(*Life) error { return nil }

// happen fills the disk and empties it again. A proxy must go on without it, and so must the
// planner; neither may lose what is there already.
func (e fill) happen(ctx context.Context, l *Life) error {
	dir := filepath.Dir(l.fleet.store)
	if e.host >= 0 {
		dir = l.fleet.sidecars[e.host].disk
	}
	if e.host >= 0 {
		l.full[e.host].Store(true)
		defer l.full[e.host].Store(false)
	}
	file := filepath.Join(dir, "filler")
	if err := fillDisk(file); err != nil {
		return err
	}
	pause(ctx, e.span)
	return os.Remove(file)
}

// fillDisk writes a file until there is no room left. That it could not write more is no error.
func fillDisk(file string) error {
	w, err := os.Create(file)
	if err != nil {
		return err
	}
	for page := make([]byte, 4096); err == nil; {
		_, err = w.Write(page)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return errors.Join(err, w.Close())
	}
	return w.Close()
}

// setClock sets a service's clock, forward or back, and right again after a while. Only the
// wall clock changes, for one process alone.
type setClock struct {
	target
	ahead, span time.Duration
}

func (e setClock) kind() string { return "set a clock" }
func (e setClock) String() string {
	return fmt.Sprintf("set the clock of %s %v ahead for %.1f s", e.target, e.ahead, e.span.Seconds())
}

// possible requires a process whose clock can be set.
func (e setClock) possible(l *Life) error {
	if runtime.GOARCH != "amd64" {
		return hoststest.ErrClock
	}
	return e.running(l)
}

// happen sets the clock, and right again. It does no harm: nothing but logs and certificates
// may go by the time of day.
func (e setClock) happen(ctx context.Context, l *Life) error {
	p := e.service(l).Current()
	if err := hoststest.SetClock(p, e.ahead); err != nil {
		return e.unlessEnded(p, err)
	}
	pause(ctx, e.span)
	return e.unlessEnded(p, hoststest.SetClock(p, 0))
}

// unlessEnded returns err if the process is still there. A process that was killed a moment ago
// is gone before anybody has waited for it.
func (e setClock) unlessEnded(p *hosts.Process, err error) error {
	if errors.Is(err, syscall.ESRCH) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	select {
	case <-p.Done():
		return nil
	default:
		return err
	}
}

// spin is a task that keeps so many processors busy until it is killed.
func spin(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	for range n {
		go func() {
			for spins := 0; ; {
				spins++
			}
		}()
	}
	select {}
}

// loadGroup is the cgroup of what takes processors, which no agent watches.
const loadGroup = "load"

// load takes all processors of the machine for a while.
type load struct{ span time.Duration }

func (e load) kind() string         { return "load" }
func (e load) String() string       { return fmt.Sprintf("all processors busy for %.1f s", e.span.Seconds()) }
func (e load) possible(*Life) error { return nil }

// happen starts twice as many busy loops as there are processors. It does no harm; hangs are
// told by the patient clock.
func (e load) happen(ctx context.Context, l *Life) error {
	ctx, cancel := context.WithTimeout(ctx, e.span)
	defer cancel()
	p, err := l.fleet.net.Host(0).StartIn(loadGroup, hoststest.Task("spin", strconv.Itoa(2*runtime.NumCPU())))
	if err != nil {
		return err
	}
	<-ctx.Done()
	if err := p.Kill(); err != nil {
		return err
	}
	<-p.Done()
	return nil
}
