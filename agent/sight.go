package agent

import (
	"fmt"
	"time"

	"github.com/psidecar/psidecar/bpf"
)

// behindAfter is how long what the kernel copied may wait to be read.
const behindAfter = 2 * time.Second

// sight is whether the agent sees what jobs do: from what it has not seen it must not
// follow that they stand still. Of the loop that looks for stalls alone.
type sight struct {
	lost   uint64    // batches that found the buffer full, so far
	lostAt time.Time // when they became more
}

// explainBlindness takes how many batches were lost and since when one waits to be read (zero: none
// does), and returns why messages of jobs are missing; empty where none are.
func (s *sight) explainBlindness(now time.Time, lost uint64, unread time.Time) (blind string) {
	if lost > s.lost {
		s.lost, s.lostAt = lost, now
	}
	const then = "rates are too low meanwhile, and a job is said to stall only where its sockets and processes say so too"
	switch {
	case now.Sub(s.lostAt) < patience:
		return "this agent does not keep up with what jobs send (ring_full): " + then
	case !unread.IsZero() && now.Sub(unread) >= behindAfter:
		return fmt.Sprintf("this agent is %s behind with reading what jobs send: %s", ago(now.Sub(unread)), then)
	}
	return ""
}

// lookBlind returns why the agent does not see all that jobs do now; empty where it
// does.
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

// tells reports whether sockets and processes say that a request waits, so long at
// least as limit: in the messages that were seen its answer may be missing.
func (f *stallFacts) tells(w *wait, limit time.Duration) bool {
	return isStopped(f.process(w.Server)) || w.To.stuck() || w.Back.stuck() || w.To.ZeroWindow || w.Back.ZeroWindow ||
		w.To.Known && w.To.Silent >= limit
}
