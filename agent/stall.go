// This file decides whether a job makes progress and, if it does not, which node
// waits for which, and which is the cause.
//
// In come [stallFacts] of one moment: when each worker was last heard of, which
// requests have no answers, what the sockets and processes of this host say. Out
// goes a [stallFinding]. The agent calls it every second. It knows no clock, no socket
// and no process.
//
// A worker that computes looks like one that hangs. So a worker that waits for
// nobody counts as standing still only when it has been silent for several times
// as long as its steps take, or when its process is stopped.

package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/psidecar/psidecar/page"
)

const (
	// patience is how long a request may wait, and a worker be silent, before
	// that is worth a word; stopped is that where its process is stopped.
	patience = 5 * time.Second
	stopped  = 2 * time.Second
	// A worker counts as silent after this many of its steps without a request.
	silentSteps = 6
	// firstStep is how long a worker may be silent of which no two steps were seen: a
	// program that begins loads its data and compiles its kernels.
	firstStep = time.Minute
	// A server counts as late when it takes this many times as long as the others,
	// or as itself before, and at least lateLeast.
	lateTimes = 4
	lateLeast = 50 * time.Millisecond
	// A worker straggles that waits less than the median one by so much of the
	// time.
	waitsLess = 0.3
	// mostStalls is how many are named.
	mostStalls = 64
)

// stallFacts are the facts about a job at one moment.
type stallFacts struct {
	Now     time.Time
	First   time.Time // of the job's messages; zero: none yet
	Last    time.Time
	Alive   bool // one of its processes on this host runs
	Workers []worker
	Servers []server
	Waits   []wait
	// Stragglers are workers that make fewer steps than the others.
	Stragglers []string
	// Blind says that messages may be missing: a quiet job may be progressing.
	Blind bool
}

// A worker is what one worker does.
type worker struct {
	Name      string
	Last      time.Time // when it was last heard of; zero: never
	Barrier   time.Time // since when it waits at one; zero: it does not
	Waiting   bool
	StepEvery time.Duration
	Waited    float64 // share of the last ten seconds that it waited
	Process   byte    // its process's state: R, S, D, T, Z; 0 unknown
	Here      bool    // it runs on this host, so that what it does is known
}

// A server is how one server answers.
type server struct {
	Name    string
	Process byte
	Recent  time.Duration // mean time to an answer, in the last seconds; 0 none
	Before  time.Duration // over all time
	Answers uint64        // in the last seconds
}

// A wait is a request without an answer: the oldest of a worker and a server.
type wait struct {
	Worker, Server string
	Since          time.Time
	Kind           string // push, pull, pushpull
	Bytes          uint64
	Keys           string // the range of them
	Requests       int    // sent meanwhile, this one included
	To, Back       socket // of the two connections, as far as their senders run here
}

// socket is what the kernel says of a connection, at its sender.
type socket struct {
	Known      bool
	Unacked    uint32        // segments
	Unsent     uint64        // bytes
	Retries    uint8         // retransmissions of the segment that is not acknowledged
	ZeroWindow bool          // the receiver takes no more
	Silent     time.Duration // since anything was acknowledged
}

// stuck reports whether what was sent does not arrive.
func (s socket) stuck() bool { return s.Known && s.Retries >= 2 && s.Unacked > 0 && !s.ZeroWindow }

// A stall is one node, or pair of nodes, that does not go on as it should.
type stall struct {
	Kind  string
	Who   string // the node that waits, or is late
	On    string // for whom; empty for nobody
	Since time.Time
	Keys  string
	Bytes uint64
	Why   string // what the sockets and processes say
}

// A stallFinding is what there is to say of a job.
type stallFinding struct {
	State  string
	Since  time.Time // when the job stopped going on; zero while it runs
	Cause  string    // the node, or pair of nodes "a-b", because of which; empty unknown
	Text   string    // a sentence; empty where there is nothing to say
	Stalls []stall   // longest first
}

// findStall returns the diagnosis.
func findStall(f *stallFacts) stallFinding {
	if !f.Alive && !f.Last.IsZero() {
		return stallFinding{State: page.Over, Since: f.Last, Text: "over, last heard of " + ago(f.Now.Sub(f.Last)) + " ago"}
	}
	begun := slices.ContainsFunc(f.Workers, func(w worker) bool { return !w.Last.IsZero() })
	if !begun {
		return stallFinding{State: page.Starting}
	}
	found := stallFinding{State: page.Running}
	found.Stalls = append(found.Stalls, f.unanswered()...)
	found.Stalls = append(found.Stalls, f.silent()...)
	found.Stalls = append(found.Stalls, f.atBarrier()...)
	slices.SortStableFunc(found.Stalls, func(a, b stall) int { return a.Since.Compare(b.Since) })
	if f.standsStill(found.Stalls) {
		found.State, found.Since = page.Stalled, f.lastHeard()
	} else if !f.Blind {
		found.Stalls = append(found.Stalls, f.late()...)
		found.Stalls = append(found.Stalls, f.straggling()...)
	}
	found.Cause, found.Text = f.verdict(&found)
	if len(found.Stalls) > mostStalls {
		found.Stalls = found.Stalls[:mostStalls]
	}
	return found
}

// unanswered returns the requests that wait for too long.
func (f *stallFacts) unanswered() (stalls []stall) {
	for _, w := range f.Waits {
		limit := patience
		if isStopped(f.process(w.Server)) {
			limit = stopped
		}
		if usual := f.server(w.Server).Before; usual > 0 {
			limit = max(limit, 3*usual)
		}
		if f.Now.Sub(w.Since) < limit || f.Blind && !f.tells(&w, limit) {
			continue
		}
		stalls = append(stalls, stall{
			Kind: page.Unanswered, Who: w.Worker, On: w.Server, Since: w.Since, Keys: w.Keys, Bytes: w.Bytes, Why: f.why(&w),
		})
	}
	return stalls
}

// why explains, as far as the facts allow, the missing answer to a request.
func (f *stallFacts) why(w *wait) string {
	switch server := f.process(w.Server); {
	case isStopped(server):
		return "the process of " + w.Server + " is stopped by a signal"
	case w.To.ZeroWindow:
		return w.Server + " takes nothing in: its receive window is closed, " + page.BytesText(float64(w.To.Unsent)) + " wait to be sent"
	case w.To.stuck():
		return fmt.Sprintf("nothing reaches %s: %d segments are not acknowledged, sent again %d times", w.Server, w.To.Unacked, w.To.Retries)
	case w.Back.stuck():
		return fmt.Sprintf("the answer does not reach %s: %d segments are not acknowledged, sent again %d times", w.Worker, w.Back.Unacked, w.Back.Retries)
	case w.Back.ZeroWindow:
		return w.Worker + " takes no answers in: its receive window is closed"
	case server == 'D':
		return "the process of " + w.Server + " waits for a disk"
	case w.To.Known:
		return w.Server + " has received the request and does not answer"
	}
	return ""
}

// silent returns the workers that ask for nothing for too long. How long a step takes
// is not known before the second one.
func (f *stallFacts) silent() (stalls []stall) {
	for _, w := range f.Workers {
		if !w.Here || w.Last.IsZero() || (w.Waiting || f.Blind) && !isStopped(w.Process) {
			continue
		}
		quiet, limit := f.Now.Sub(w.Last), max(patience, silentSteps*w.StepEvery)
		if w.StepEvery == 0 {
			limit = firstStep
		}
		why := "it computes, or hangs"
		if isStopped(w.Process) {
			limit, why = stopped, "its process is stopped by a signal"
		}
		if quiet >= limit {
			stalls = append(stalls, stall{Kind: page.Silent, Who: w.Name, Since: w.Last, Why: why})
		}
	}
	return stalls
}

// atBarrier returns the workers that wait at a barrier for too long.
func (f *stallFacts) atBarrier() (stalls []stall) {
	for _, w := range f.Workers {
		if w.Barrier.IsZero() || isStopped(w.Process) || f.Blind {
			continue
		}
		if f.Now.Sub(w.Barrier) >= max(patience, silentSteps*w.StepEvery) {
			stalls = append(stalls, stall{Kind: page.AtBarrier, Who: w.Name, Since: w.Barrier})
		}
	}
	return stalls
}

// standsStill reports whether no worker goes on: each stalls, or waits at a
// barrier for one that does.
func (f *stallFacts) standsStill(stalls []stall) bool {
	if len(stalls) == 0 {
		return false
	}
	for _, w := range f.Workers {
		if w.Last.IsZero() {
			continue
		}
		stalled := slices.ContainsFunc(stalls, func(s stall) bool { return s.Who == w.Name })
		waits := w.Waiting && f.Now.Sub(w.Last) >= stopped
		if !stalled && !waits {
			return false
		}
	}
	return true
}

// lastHeard is when any worker was last heard of.
func (f *stallFacts) lastHeard() (last time.Time) {
	for _, w := range f.Workers {
		if w.Last.After(last) {
			last = w.Last
		}
	}
	return last
}

// late returns the servers that answer late.
func (f *stallFacts) late() (stalls []stall) {
	for i, s := range f.Servers {
		if s.Recent < lateLeast || s.Answers < 2 {
			continue
		}
		var others []time.Duration
		for k, o := range f.Servers {
			if k != i && o.Recent > 0 {
				others = append(others, o.Recent)
			}
		}
		usual, than := s.Before, "before"
		if len(others) > 0 {
			slices.Sort(others)
			usual, than = others[(len(others)-1)/2], "the others"
		}
		if s.Recent >= lateTimes*usual {
			stalls = append(stalls, stall{Kind: page.Late, Who: s.Name, Since: f.Now,
				Why: fmt.Sprintf("it takes %s to answer, %s %s", ago(s.Recent), than, ago(usual))})
		}
	}
	return stalls
}

// straggling returns the workers for which the others wait, or that do not keep
// up with them.
func (f *stallFacts) straggling() (stalls []stall) {
	for _, name := range f.Stragglers {
		stalls = append(stalls, stall{Kind: page.Straggling, Who: name, Since: f.Now, Why: "it makes far fewer steps than the others"})
	}
	var waited []float64
	for _, w := range f.Workers {
		if !w.Last.IsZero() && w.Here {
			waited = append(waited, w.Waited)
		}
	}
	if len(waited) < 2 || len(stalls) > 0 {
		return stalls
	}
	slices.Sort(waited)
	median := waited[len(waited)/2]
	for _, w := range f.Workers {
		if !w.Last.IsZero() && w.Here && w.Waited+waitsLess < median {
			stalls = append(stalls, stall{Kind: page.Straggling, Who: w.Name, Since: f.Now,
				Why: fmt.Sprintf("the others wait %.0f%% of the time, it %.0f%%", 100*median, 100*w.Waited)})
		}
	}
	if 2*len(stalls) > len(waited) {
		return nil // it is the rule, not the exception
	}
	return stalls
}

// verdict says because of whom, and in a sentence.
func (f *stallFacts) verdict(found *stallFinding) (cause, text string) {
	if len(found.Stalls) == 0 {
		return "", ""
	}
	cause, first := f.cause(found.Stalls)
	switch {
	case found.State == page.Stalled:
		text = "stalled for " + ago(f.Now.Sub(found.Since)) + ": "
	case first.Kind == page.Late || first.Kind == page.Straggling:
		text = ""
	default:
		text = "for " + ago(f.Now.Sub(first.Since)) + ": "
	}
	return cause, text + first.Text()
}

// cause returns because of whom the job does not go on, and the stall that says
// so best.
func (f *stallFacts) cause(stalls []stall) (string, stall) {
	waiters := map[string]int{}
	var best stall
	for _, s := range stalls {
		if s.Kind == page.Unanswered {
			if waiters[s.On]++; waiters[s.On] > waiters[best.On] || best.On == "" {
				best = s
			}
		}
	}
	for _, s := range stalls { // a stopped process explains more than the nodes that wait for it
		if s.Kind == page.Silent && isStopped(f.process(s.Who)) && !isStopped(f.process(best.On)) {
			return s.Who, s
		}
	}
	if best.Kind == "" {
		for _, s := range stalls {
			if s.Kind != page.AtBarrier {
				return s.Who, s
			}
		}
		return "", stalls[0] // for whom, another host knows
	}
	for _, s := range stalls { // and so does a connection that is cut
		if w := f.wait(s.Who, s.On); s.Kind == page.Unanswered && s.On == best.On && w != nil && (w.To.stuck() || w.Back.stuck()) {
			return s.Who + "-" + s.On, s
		}
	}
	return best.On, best
}

func (f *stallFacts) wait(worker, server string) *wait {
	for i := range f.Waits {
		if w := &f.Waits[i]; w.Worker == worker && w.Server == server {
			return w
		}
	}
	return nil
}

func (f *stallFacts) server(name string) server {
	for _, s := range f.Servers {
		if s.Name == name {
			return s
		}
	}
	return server{}
}

// process returns the state of a node's process, 0 if it is not known.
func (f *stallFacts) process(name string) byte {
	for _, w := range f.Workers {
		if w.Name == name {
			return w.Process
		}
	}
	return f.server(name).Process
}

func isStopped(state byte) bool { return state == 'T' || state == 't' }
