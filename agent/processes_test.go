package agent

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"testing"
	"testing/fstest"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

const node = "DMLC_ROLE=worker\x00DMLC_PS_ROOT_URI=198.18.0.1\x00DMLC_PS_ROOT_PORT=8000\x00"

// environments counts which processes' environments are read.
type environments struct {
	fstest.MapFS
	read  map[string]int
	after func(name string) // called when one has been read, if not nil
}

// Open is how files are read.
func (e environments) Open(name string) (fs.File, error) {
	e.read[name]++
	f, err := e.MapFS.Open(name)
	if e.after != nil {
		e.after(name)
	}
	return f, err
}

func (e environments) set(pid int, environment string) {
	e.MapFS[fmt.Sprintf("%d/environ", pid)] = &fstest.MapFile{Data: []byte(environment)}
}

// A host's processes are looked at some times, then left alone until all are
// looked at again; nodes that come, go or appear by exec are found.
func TestGlanceFindsNodesThatCome(t *testing.T) {
	proc := environments{MapFS: fstest.MapFS{}, read: map[string]int{}}
	proc.set(1, "HOME=/")
	proc.set(2, "HOME=/")
	p := newProcesses("", nil)
	p.readFrom(proc)
	glance := func(nodes ...int) {
		t.Helper()
		s := require.Value(p.glance())(t)
		var got []int
		for _, n := range s.Processes {
			got = append(got, n.PID)
		}
		if fmt.Sprint(got) != fmt.Sprint(nodes) {
			t.Fatalf("nodes %v, want %v", got, nodes)
		}
	}
	require.Value(p.refresh(anew))(t)
	for range 10 {
		glance()
	}
	if n := proc.read["1/environ"]; n != seenOther {
		t.Errorf("process 1 was looked at %d times, want %d", n, seenOther)
	}
	proc.set(3, node)
	glance(3)
	proc.set(4, "HOME=/") // a shell that is about to start a node
	glance(3)
	proc.set(4, node)
	glance(3, 4)
	delete(proc.MapFS, "3/environ")
	glance(4)
	proc.set(2, node) // by exec, after it was let be
	glance(4)
	p.whole = time.Now()
	glance(2, 4)
	if n := proc.read["1/environ"]; n != seenOther+1 {
		t.Errorf("process 1 was looked at %d times, want %d", n, seenOther+1)
	}
}

// What begins to run a node while a look around is under way, which has seen it
// before, is found by the next one.
func TestBeginsWhileLookedAt(t *testing.T) {
	looks := map[string]func(p *processes) error{
		"glance":  func(p *processes) error { _, err := p.glance(); return err },
		"refresh": func(p *processes) error { _, err := p.refresh(whoIsDue); return err },
	}
	for name, look := range looks {
		for _, before := range []int{0, seenOther - 1, seenOther} { // looks that saw it as another
			t.Run(fmt.Sprint(name, before), func(t *testing.T) {
				proc := environments{MapFS: fstest.MapFS{}, read: map[string]int{}}
				proc.set(1, "HOME=/")
				proc.set(2, "HOME=/")
				p := newProcesses("", nil)
				for range before {
					p.readFrom(proc)
					require.NoError(t, look(p))
				}
				proc.set(3, "HOME=/") // read last, and always
				proc.after = func(name string) {
					if name == "3/environ" {
						proc.set(2, node)
						p.began(2)
					}
				}
				p.readFrom(proc)
				p.whole = time.Now().Add(time.Hour)
				for range 2 {
					require.NoError(t, look(p))
				}
				if len(p.snapshot.Processes) != 1 || p.snapshot.Processes[0].PID != 2 {
					t.Errorf("found %+v; seen as others: %v", p.snapshot.Processes, p.others)
				}
			})
		}
	}
}

// Processes have started in the order in which they did, before now.
func TestStarted(t *testing.T) {
	p := newProcesses("/proc", nil)
	own, ok := p.started(os.Getpid())
	parent, there := p.started(os.Getppid())
	if now := time.Now().UnixNano(); !ok || !there || parent > own || own > now {
		t.Errorf("the parent at %d (%v), this one at %d (%v), now %d", parent, there, own, ok, now)
	}
	if at, ok := p.started(math.MaxInt32); ok {
		t.Errorf("no process started at %d", at)
	}
}
