package agent

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// A thousand processes that have the environment of a node and do nothing are
// looked at now and then, and their environment read once, however often it is
// time to look.
func TestIdleNodesCostLittle(t *testing.T) {
	const idle = 1000
	proc := environments{MapFS: fstest.MapFS{}, read: map[string]int{}}
	for i := range idle {
		proc.set(100+i, node)
	}
	p := newProcesses("", nil)
	p.readFrom(proc)
	now := time.Now()
	p.now = func() time.Time { return now }
	p.young.share = 1 // the real budget may leave out looks, by the real time that they take
	looks := 0
	before := p.snapshot
	for end := now.Add(10 * time.Minute); now.Before(end); now = now.Add(discoverEvery) {
		p.whole = end // when a look at all comes depends on how long they take
		s, err := p.glance()
		if err != nil || len(s.Processes) != idle {
			t.Fatalf("%d processes, %v", len(s.Processes), err)
		}
		if s != before {
			looks++
			before = s
		}
	}
	if most := youngLooks + 10*60/int(longestPause.Seconds()) + 10; looks > most {
		t.Errorf("%d looks at the sockets in ten minutes, want at most %d", looks, most)
	}
	environments := 0
	for name, n := range proc.read {
		if strings.HasSuffix(name, "/environ") {
			environments += n
		}
	}
	if environments > 2*idle {
		t.Errorf("%d environments read, want at most %d", environments, 2*idle)
	}
	if !proc.begins(p, 5000) {
		t.Error("a node that begins after ten minutes is not found at once")
	}
}

// begins starts a node and reports whether the next glance shows it.
func (e environments) begins(p *processes, pid int) bool {
	e.set(pid, node)
	s, err := p.glance()
	if err != nil {
		return false
	}
	for i := range s.Processes {
		if s.Processes[i].PID == pid {
			return true
		}
	}
	return false
}

// Connections whose owner is not to be found have the processes looked at again
// and again, but not for more than a part of the time.
func TestUnknownConnectionsHaveABudget(t *testing.T) {
	now := time.Now()
	b := budget{share: 100}
	spent := time.Duration(0)
	for end := now.Add(time.Hour); now.Before(end); now = now.Add(10 * time.Millisecond) {
		if b.allows(now) {
			b.spend(50 * time.Millisecond)
			spent += 50 * time.Millisecond
		}
	}
	if most := time.Hour/100 + burst + 50*time.Millisecond; spent > most || spent < most/2 {
		t.Errorf("%v of an hour, want some %v", spent, most)
	}
	p := newProcesses("", nil)
	p.readFrom(fstest.MapFS{fmt.Sprintf("%d/environ", 7): {Data: []byte("HOME=/")}})
	p.now = func() time.Time { return now }
	p.all.spend(time.Hour)
	if _, may := p.mayLookAgain(); may {
		t.Error("without budget, and without a new node, all are looked at again")
	}
}
