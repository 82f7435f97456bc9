package listeners

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/handover"
)

// A proxy that hangs keeps the jobs that it carries waiting for ever, and nobody
// notices: their connections are open. The agent pings it, and ends it when it
// has not answered for Options.HangAfter, so that whoever started it starts
// another. It is not ended while it is being debugged, while it waits for a
// processor, or where the agent itself was away; and not again and again.

// peer is the process at the other end of a connection.
type peer struct {
	pid   int32
	pidfd int // -1: it cannot be ended: it is this process, or not visible
}

// soPeerPIDFD is SO_PEERPIDFD, of Linux 6.5.
const soPeerPIDFD = 77

// openPeer finds the process that opened the connection.
func openPeer(conn *handover.Conn, pid int32) *peer {
	p := &peer{pid: pid, pidfd: -1}
	if int(pid) == os.Getpid() || pid <= 0 {
		return p
	}
	if fd, err := conn.Option(unix.SOL_SOCKET, soPeerPIDFD); err == nil {
		p.pidfd = fd
		unix.CloseOnExec(fd)
	} else if fd, err := unix.PidfdOpen(int(pid), 0); err == nil {
		p.pidfd = fd // of the same process, since it answers pings after this
	}
	return p
}

func (p *peer) close() {
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
	}
}

// kill kills the process, if it is still that one.
func (p *peer) kill() error {
	if p.pidfd < 0 {
		return fmt.Errorf("process %d cannot be ended from here", p.pid)
	}
	if err := unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0); err != nil {
		return fmt.Errorf("ending process %d (needs CAP_KILL where it is another user's): %w", p.pid, err)
	}
	return nil
}

// seen is what the system says of a process at one moment.
type seen struct {
	state  byte          // as in /proc/PID/stat; 0: it is not known
	ran    time.Duration // on a processor, all threads that are alive together
	waited time.Duration // for one likewise; a wait counts when it is over
	ready  bool          // a thread runs, or waits for a processor
}

// look returns what the system says of the process.
func (p *peer) look() (s seen) {
	dir := "/proc/" + strconv.Itoa(int(p.pid))
	s.state = stateOf(dir)
	threads, err := os.ReadDir(dir + "/task")
	if err != nil {
		return s
	}
	for _, t := range threads {
		thread := dir + "/task/" + t.Name()
		s.ready = s.ready || stateOf(thread) == 'R'
		text, err := os.ReadFile(thread + "/schedstat")
		if f := strings.Fields(string(text)); err == nil && len(f) >= 2 {
			ran, _ := strconv.ParseInt(f[0], 10, 64)
			waited, _ := strconv.ParseInt(f[1], 10, 64)
			s.ran, s.waited = s.ran+time.Duration(ran), s.waited+time.Duration(waited)
		}
	}
	return s
}

// stateOf returns the state of a process or thread by its folder in /proc; 0: it is not
// known.
func stateOf(dir string) byte {
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return 0
	}
	if i := bytes.LastIndexByte(stat, ')'); i >= 0 && i+2 < len(stat) {
		return stat[i+2]
	}
	return 0
}

// verdict is what a proxy's silence means.
type verdict string

const (
	hangs    verdict = ""
	debugged verdict = "it is being debugged"
	starved  verdict = "it waits for a processor"
	busy     verdict = "it computes"
	away     verdict = "this agent was away itself"
)

// judge says what the silence of a process means that was to last for wanted and
// has lasted for lasted. One that computes may only be late: it has until patience is
// over, while one that sleeps, or is stopped, does not come back by itself.
func judge(before, now seen, wanted, lasted time.Duration, patient bool) verdict {
	ran, waited := now.ran-before.ran, now.waited-before.waited
	switch {
	case now.state == 't':
		return debugged
	case lasted > wanted+wanted/2:
		return away // it was stopped, or the machine was suspended
	case now.state == 'T':
	case waited > wanted/4:
		return starved
	case now.ready && ran < wanted/4:
		return starved // it has waited for a processor all the while: one that turns in a circle runs
	case patient && ran > wanted/20:
		return busy
	}
	return hangs
}

// A limit bounds how often proxies are ended.
type limit struct{ ends []time.Time }

// At most this many are ended within that time.
const (
	mostEnds   = 5
	endsWithin = 10 * time.Minute
)

// allows reports whether another may be ended now, and counts it.
func (l *limit) allows(now time.Time) bool {
	for len(l.ends) > 0 && now.Sub(l.ends[0]) >= endsWithin {
		l.ends = l.ends[1:]
	}
	if len(l.ends) >= mostEnds {
		return false
	}
	l.ends = append(l.ends, now)
	return true
}

// silence follows how long a proxy has not said anything.
type silence struct {
	l      *Listeners
	peer   *peer
	wanted time.Duration // until it counts as hanging; 0: it is never ended
	from   time.Time     // when it was last heard
	asked  time.Time     // when the present wait began
	last   seen
	again  bool // it gets one more moment: its answer may be there already
}

// heard notes that the proxy has said something.
func (s *silence) heard() {
	s.from, s.again = time.Now(), false
	s.asked = s.from
}

// until is when the present wait ends.
func (s *silence) until() time.Time {
	switch {
	case s.wanted == 0:
		return s.from.Add(s.l.opts.Patience)
	case s.again:
		return time.Now().Add(s.wanted / 8)
	}
	return s.asked.Add(s.wanted)
}

// look is called every now and then, while the proxy is well.
func (s *silence) look() {
	if s.wanted > 0 {
		s.last = s.peer.look()
	}
}

// over is called when a wait has ended without a word. Without an error it is to
// be waited for again.
func (s *silence) over() error {
	stuck := fmt.Errorf("process %d is stuck: it has not answered for %v", s.peer.pid, time.Since(s.from).Round(100*time.Millisecond))
	gone := time.Since(s.from) >= s.l.opts.Patience
	switch {
	case s.wanted == 0:
		return stuck
	case !s.again:
		s.again = true
		return nil
	}
	s.again = false
	before, now := s.last, s.peer.look()
	why := judge(before, now, s.wanted, time.Since(s.asked)-s.wanted/8, !gone)
	s.last, s.asked = now, time.Now()
	stuck = fmt.Errorf("%w (state %q, has computed for %v and waited for a processor for %v meanwhile)", stuck, now.state, now.ran-before.ran, now.waited-before.waited)
	if why != hangs {
		s.l.log.Warn("a proxy does not answer, and is not ended for it", "pid", s.peer.pid, "because", why)
		if why == debugged && gone {
			return fmt.Errorf("%w: %s", stuck, why)
		}
		return nil
	}
	if err := s.l.endHanging(s.peer); err != nil {
		if !gone {
			return nil
		}
		return errors.Join(stuck, err)
	}
	return fmt.Errorf("%w, and was ended", stuck)
}

// endHanging ends a proxy, unless that was done too often of late.
func (l *Listeners) endHanging(p *peer) error {
	l.mu.Lock()
	allowed := l.ending.allows(time.Now())
	l.mu.Unlock()
	if !allowed {
		return fmt.Errorf("it is not ended: %d proxies were in %v", mostEnds, endsWithin)
	}
	if err := p.kill(); err != nil {
		l.hung.failed.Add(1)
		return err
	}
	l.hung.ended.Add(1)
	return nil
}

// hung counts proxies that hung.
type hung struct{ ended, failed atomic.Uint64 }
