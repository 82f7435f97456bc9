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

	"github.com/psidecar/psidecar/internal/handover"
)

// A proxy that hangs blocks the jobs that it carries for ever, and nothing else notices: their
// TCP connections stay open. The agent therefore pings each proxy and kills one that has been
// silent for Options.HangAfter; its supervisor then starts another.
//
// Killing a proxy breaks connections of the job (unless they are kept, see kept.go), so silence
// alone is not enough. A proxy is spared while a debugger holds it, while it is starved of
// processor time, while a thread of it is in uninterruptible sleep, for a while when it computes,
// and when the agent itself was stopped and so could not have heard it. A rate limit stops a proxy
// that always hangs from being killed over and over.

// peer is the process at the other end of a proxy's connection. The pidfd pins the process: its
// number may be reused after it ends, the descriptor never refers to another.
type peer struct {
	pid   int32
	pidfd int // -1: never killed or waited for: this process itself, or one that cannot be opened
}

// soPeerPIDFD is SO_PEERPIDFD, of Linux 6.5.
const soPeerPIDFD = 77

// openPeer opens a pidfd for the process that made the connection. SO_PEERPIDFD is free of
// races. On kernels before 6.5 pid is opened by number instead, which may already belong to
// another process.
func openPeer(conn *handover.Conn, pid int32) *peer {
	p := &peer{pid: pid, pidfd: -1}
	if int(pid) == os.Getpid() || pid <= 0 {
		return p
	}
	if fd, err := conn.Option(unix.SOL_SOCKET, soPeerPIDFD); err == nil {
		p.pidfd = fd
		unix.CloseOnExec(fd)
	} else if fd, err := unix.PidfdOpen(int(pid), 0); err == nil {
		// Without SO_PEERPIDFD. If the number was reused meanwhile, the descriptor is another
		// process's; the proxy's connection is then at its end, and attend returns before
		// anything is killed.
		p.pidfd = fd
	}
	return p
}

func (p *peer) close() {
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
	}
}

// traceWithin is how long a stuck process has for its stack traces.
const traceWithin = time.Second

// kill ends the process, if it is still that one. It first sends SIGABRT, as systemd's watchdog
// does: the Go runtime then logs the stacks of all goroutines and exits, which is the only account
// of why the process was stuck. One that is stopped, or does not exit within traceWithin, is killed.
func (p *peer) kill(state byte) error {
	if p.pidfd < 0 {
		return fmt.Errorf("process %d cannot be ended from here", p.pid)
	}
	if state != 'T' && unix.PidfdSendSignal(p.pidfd, unix.SIGABRT, nil, 0) == nil && p.awaitExit(traceWithin) {
		return nil
	}
	if err := unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("ending process %d (needs CAP_KILL where it is another user's): %w", p.pid, err)
	}
	return nil
}

// awaitExit reports whether the process exits within a time.
func (p *peer) awaitExit(within time.Duration) bool {
	for end := time.Now().Add(within); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}, int(max(0, time.Until(end)).Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n > 0
		}
	}
}

// seen is a sample of a process's scheduling state. Two samples around a silent period tell why
// the process was silent.
type seen struct {
	state  byte          // as in /proc/PID/stat; 0: it is not known
	ran    time.Duration // on a processor, summed over the threads alive now
	waited time.Duration // runnable but not running, summed likewise; the kernel adds a wait when it ends
	ready  bool          // at least one thread runs or waits for a processor
	// blocked has the kernel functions in which threads are in uninterruptible sleep, one for each
	// thread.
	blocked []string
}

// look samples /proc/PID. It is best effort: threads that end meanwhile are missing, and a
// process that cannot be read yields the zero sample. It reads two files for each thread, and a
// third one for each in uninterruptible sleep.
func (p *peer) look() (s seen) {
	dir := "/proc/" + strconv.Itoa(int(p.pid))
	s.state = stateOf(dir)
	threads, err := os.ReadDir(dir + "/task")
	if err != nil {
		return s
	}
	for _, t := range threads {
		thread := dir + "/task/" + t.Name()
		switch stateOf(thread) {
		case 'R':
			s.ready = true
		case 'D':
			s.blocked = append(s.blocked, sleepsIn(thread))
		}
		text, err := os.ReadFile(thread + "/schedstat")
		if f := strings.Fields(string(text)); err == nil && len(f) >= 2 {
			ran, _ := strconv.ParseInt(f[0], 10, 64)
			waited, _ := strconv.ParseInt(f[1], 10, 64)
			s.ran, s.waited = s.ran+time.Duration(ran), s.waited+time.Duration(waited)
		}
	}
	return s
}

// stateOf returns the one-letter state in the stat file of a process or thread, 0 if it cannot
// be read. The program's name precedes the state in parentheses and may itself contain any
// character, so the search starts from the last parenthesis.
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

// sleepsIn returns the kernel function in which a thread sleeps, "?" if the kernel does not tell.
func sleepsIn(dir string) string {
	text, err := os.ReadFile(dir + "/wchan")
	if name := string(bytes.TrimSpace(text)); err == nil && name != "" && name != "0" {
		return name
	}
	return "?"
}

// mostSleeps bounds the threads that a message names.
const mostSleeps = 4

// sleeps describes the threads in uninterruptible sleep, for a message; empty if there are none.
func (s *seen) sleeps() string {
	if len(s.blocked) == 0 {
		return ""
	}
	return fmt.Sprintf("; threads in uninterruptible sleep: %d, in %s", len(s.blocked), strings.Join(s.blocked[:min(len(s.blocked), mostSleeps)], ", "))
}

// verdict is the reason for a proxy's silence. Every verdict but hangs spares the proxy.
type verdict string

const (
	hangs    verdict = ""
	debugged verdict = "it is being debugged"
	starved  verdict = "it is waiting for a CPU"
	blocked  verdict = "a thread is in uninterruptible sleep"
	busy     verdict = "it computes"
	away     verdict = "this agent was suspended itself"
)

// judge decides why a process was silent. wanted is how long the silence should have lasted
// when its timer fired, lasted how long it really did, and before and now are samples of its
// start and end. A process that computes may merely be late, so it is spared while patient
// holds; one that sleeps or was stopped will not come back by itself. In a process with a thread in
// uninterruptible sleep, as in a page fault, other threads may be late because of it, and a kill
// has no effect before the kernel lets that thread go.
//
// The order of the cases matters: a debugger explains everything else, and figures that were
// taken while the agent itself was away explain nothing.
func judge(before, now seen, wanted, lasted time.Duration, patient bool) verdict {
	ran, waited := now.ran-before.ran, now.waited-before.waited
	switch {
	case now.state == 't':
		return debugged
	case lasted > wanted+wanted/2:
		return away // it was stopped, or the machine was suspended
	// Stopped by a signal: nobody waits for it to continue, so it counts as hanging.
	case now.state == 'T':
	case len(now.blocked) > 0:
		return blocked
	// A quarter of the period in the run queue is far more than a healthy host ever shows.
	case waited > wanted/4:
		return starved
	case now.ready && ran < wanted/4:
		return starved // the kernel has not counted this wait yet, since it goes on; a busy loop would have run
	case patient && ran > wanted/20:
		return busy
	}
	return hangs
}

// A limit bounds how often proxies are killed: at most mostEnds in any endsWithin. ends has the
// times of those within the window, oldest first.
type limit struct{ ends []time.Time }

// At most mostEnds proxies are killed within endsWithin.
const (
	mostEnds   = 5
	endsWithin = 10 * time.Minute
)

// allows reports whether another proxy may be killed now, and if so counts it. A kill that then
// fails stays counted.
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

// silence tracks how long one proxy has been silent. It belongs to the goroutine that reads the
// proxy's messages (converse), so it needs no lock.
type silence struct {
	l      *Listeners
	peer   *peer
	wanted time.Duration // silence after which it counts as hanging; 0: it is never killed
	from   time.Time     // when the last message came
	asked  time.Time     // start of the period judged next; later than from after a verdict that spared it
	last   seen          // sample at the start of that period
	again  bool          // in the extra wait after a timeout: the answer may already be in the socket
}

// heard restarts the measurement: a message has come.
func (s *silence) heard() {
	s.from, s.again = time.Now(), false
	s.asked = s.from
}

// until returns the read deadline of the current wait.
func (s *silence) until() time.Time {
	switch {
	case s.wanted == 0:
		return s.from.Add(s.l.opts.Patience)
	case s.again:
		return time.Now().Add(s.wanted / 8)
	}
	return s.asked.Add(s.wanted)
}

// look takes the baseline sample, with each pong, so that a later verdict compares against a
// moment at which the proxy was well. A proxy that is never killed is not sampled.
func (s *silence) look() {
	if s.wanted > 0 {
		s.last = s.peer.look()
	}
}

// over handles a read that timed out. It returns nil if the caller is to go on reading, and an
// error that ends the conversation otherwise; the proxy may or may not have been killed by
// then, as the error says.
//
// The first timeout only starts a short extra wait. After a pause of the agent, its timer and
// the proxy's answer are both due, and the timer may win.
func (s *silence) over() error {
	stuck := fmt.Errorf("process %d is stuck: it has not answered for %v", s.peer.pid, time.Since(s.from).Round(100*time.Millisecond))
	// Beyond Patience a proxy that computes is no longer spared, and the conversation ends even
	// if the process cannot be killed, so that connects no longer go to it.
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
	stuck = fmt.Errorf("%w (state %q, used %v of CPU time and waited %v for a CPU in the meantime%s)", stuck, now.state, now.ran-before.ran, now.waited-before.waited, now.sleeps())
	if why != hangs {
		s.l.log.Warn("a proxy does not respond, but is not killed", "pid", s.peer.pid, "because", why, "silence", stuck)
		// No more connects go to it. If it goes on, it connects again.
		if (why == debugged || why == blocked) && gone {
			return fmt.Errorf("%w: %s", stuck, why)
		}
		return nil
	}
	// Said before it is gone: a kill can take long to have an effect.
	s.l.log.Warn("a proxy does not respond, and is to be killed", "pid", s.peer.pid, "silence", stuck)
	if err := s.l.endHanging(s.peer, now.state); err != nil {
		if !gone {
			return nil
		}
		return errors.Join(stuck, err)
	}
	return fmt.Errorf("%w, and was killed", stuck)
}

// endHanging ends a proxy, unless that was done too often of late.
func (l *Listeners) endHanging(p *peer, state byte) error {
	l.mu.Lock()
	allowed := l.ending.allows(time.Now())
	l.mu.Unlock()
	if !allowed {
		return fmt.Errorf("not killed: %d proxies were killed within %v", mostEnds, endsWithin)
	}
	if err := p.kill(state); err != nil {
		l.hung.failed.Add(1)
		return err
	}
	l.hung.ended.Add(1)
	return nil
}

// hung counts proxies that hung.
type hung struct{ ended, failed atomic.Uint64 }
