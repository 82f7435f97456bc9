package agent

import (
	"fmt"
	"time"

	"github.com/psidecar/psidecar/bpf"
)

// behindAfter is how long records may wait in the ring buffer before the agent counts as
// behind.
const behindAfter = 2 * time.Second

// sight tracks whether the agent sees everything that jobs do. If it does not, missing messages
// must not be taken for a stall. It belongs to findStalls.
type sight struct {
	lost   uint64    // batches that found the ring buffer full, so far
	lostAt time.Time // when that number last grew
}

// explainBlindness returns why messages may be missing, empty if none are. lost is the number
// of lost batches so far, unread the time of the oldest record that waits to be read (zero:
// none).
func (s *sight) explainBlindness(now time.Time, lost uint64, unread time.Time) (blind string) {
	if lost > s.lost {
		s.lost, s.lostAt = lost, now
	}
	const then = "rates are too low in the meantime, and a stall is reported only if sockets and processes confirm it"
	switch {
	// What was lost may still be the answer to a request that seems to wait.
	case now.Sub(s.lostAt) < patience:
		return "this agent does not keep up with the jobs' traffic (ring_full): " + then
	case !unread.IsZero() && now.Sub(unread) >= behindAfter:
		return fmt.Sprintf("this agent lags %s behind the jobs' traffic: %s", ago(now.Sub(unread)), then)
	}
	return ""
}

// lookBlind returns why the agent may be missing messages now, empty if it is not.
func (a *Agent) lookBlind() string {
	counts, err := a.capture.Counts()
	if err != nil {
		return "" // it has ended
	}
	var unread time.Time
	if nanos, ok := a.capture.Unread(); ok {
		unread = time.Unix(0, int64(nanos)+a.wall)
	}
	return a.sight.explainBlindness(a.now(), counts[bpf.ReasonRingFull].Events, unread)
}

// tells reports whether sockets and processes confirm that a request has been waiting for at
// least limit. With messages missing, the lack of an answer proves nothing.
func (f *stallFacts) tells(w *wait, limit time.Duration) bool {
	return isStopped(f.process(w.Server)) || w.To.stuck() || w.Back.stuck() || w.To.ZeroWindow || w.Back.ZeroWindow ||
		w.To.Known && w.To.Silent >= limit
}
