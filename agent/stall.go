// This file decides whether a job makes progress and, if it does not, which node waits for
// which, and which one is the cause.
//
// [findStall] takes the [stallFacts] of one moment (when each worker was last heard of, which
// requests have no answers, the states of sockets and processes of this host) and returns a
// [stallFinding]. It is a pure function, called every second.
//
// From the outside, a worker that computes looks like one that hangs. So a worker that waits
// for nobody counts as stalled only after several times its usual step time, or if its process
// is stopped.

package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/page"
)

const (
	// patience is how long a request may wait, or a worker be silent, before it is reported;
	// stopped is the same for a process that is stopped.
	patience = 5 * time.Second
	stopped  = 2 * time.Second
	// silentSteps is the number of its step times after which a silent worker is reported.
	silentSteps = 6
	// firstStep is how long a worker may be silent before two of its steps were seen: a program
	// that starts loads its data and compiles its kernels.
	firstStep = time.Minute
	// A server is late if it takes lateTimes as long as the others, or as itself before, and at
	// least lateLeast.
	lateTimes = 4
	lateLeast = 50 * time.Millisecond
	// waitsLess is by how much less of its time a straggler waits than the median worker.
	waitsLess = 0.3
	// mostStalls bounds the stalls of a finding.
	mostStalls = 64
)

// stallFacts are the facts about a job at one moment.
type stallFacts struct {
	Now     time.Time
	First   time.Time // first message of the job; zero: none yet
	Last    time.Time // latest message
	Alive   bool      // a process of the job runs on this host
	Workers []worker
	Servers []server
	Waits   []wait
	// Stragglers are the workers that make fewer steps than the others.
	Stragglers []string
	// Blind says that messages may be missing, so a job that looks quiet may be progressing.
	Blind bool
}

// A worker is what is known of a worker's activity.
type worker struct {
	Name      string
	Last      time.Time     // of its last request or answer; zero: never
	Barrier   time.Time     // since when it waits at a barrier; zero: it does not
	Waiting   bool          // for an answer or at a barrier
	StepEvery time.Duration // mean time between steps; 0: unknown
	Waited    float64       // fraction of the last ten seconds that it spent waiting
	Process   byte          // state of its process: R, S, D, T, Z; 0: unknown
	Here      bool          // it runs on this host, so its requests are seen
	Cut       *cut          // of a silent worker: a connection on which nothing arrives
}

// A cut is a connection between two nodes on which nothing arrives. What its sender wrote was
// seen leaving, so the messages alone say that the receiver has it.
type cut struct {
	From, To string
	socket
}

// other returns the node at the other end than name.
func (c *cut) other(name string) string {
	if c.From == name {
		return c.To
	}
	return c.From
}

// A server is how fast a server answers.
type server struct {
	Name    string
	Process byte
	Recent  time.Duration // mean latency in the last seconds; 0: no answers
	Before  time.Duration // mean latency over all time
	Answers uint64        // in the last seconds
}

// A wait is a request in flight, the oldest one of its worker and server.
type wait struct {
	Worker, Server string
	Since          time.Time
	Kind           string // push, pull, pushpull
	Bytes          uint64
	Keys           string // range of its keys
	Requests       int    // in flight between the two, this one included
	To, Back       socket // the connections of both directions, if their senders run here
}

// A socket is the kernel's state of a connection, at its sender.
type socket struct {
	Known      bool          // the other fields are valid
	Unacked    uint32        // segments
	Unsent     uint64        // bytes
	Retries    uint8         // retransmissions of the oldest unacknowledged segment
	ZeroWindow bool          // the receiver's window is closed
	Silent     time.Duration // since the last ack
}

// stuck reports whether segments do not arrive. A single retransmission is ordinary loss.
func (s socket) stuck() bool { return s.Known && s.Retries >= 2 && s.Unacked > 0 && !s.ZeroWindow }

// lost describes the segments of a socket that is stuck.
func (s socket) lost() string {
	return fmt.Sprintf("%d segments are unacknowledged, retransmitted %d times", s.Unacked, s.Retries)
}

// A stall is a node, or a pair of nodes, that does not make progress.
type stall struct {
	Kind  string
	Who   string // the node that waits or is late
	On    string // the node it waits for; may be empty
	Since time.Time
	Keys  string
	Bytes uint64
	Why   string // what sockets and processes show
}

// A stallFinding is the diagnosis of a job.
type stallFinding struct {
	State  string
	Since  time.Time // when the job stopped; zero while it runs
	Cause  string    // the node, or pair of nodes "a-b", that causes it; empty: unknown
	Text   string    // a sentence for people; may be empty
	Stalls []stall   // longest first
}

// findStall returns the diagnosis of a job.
func findStall(f *stallFacts) stallFinding {
	if !f.Alive && !f.Last.IsZero() {
		return stallFinding{State: page.Over, Since: f.Last, Text: "over, last heard of " + ago(f.Now.Sub(f.Last)) + " ago"}
	}
	// No worker has sent anything yet: it may be loading its data for a long time.
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

// unanswered returns the requests that have waited for too long: for patience, or three times
// the server's mean latency if that is longer.
func (f *stallFacts) unanswered() (stalls []stall) {
	for _, w := range f.Waits {
		limit := patience
		// A stopped process needs no patience: it will not answer.
		if isStopped(f.process(w.Server)) {
			limit = stopped
		}
		// Some servers answer only when all workers have pushed, which may take long in every
		// step.
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

// why explains the missing answer to a request, as far as the facts allow, with the strongest
// evidence first.
func (f *stallFacts) why(w *wait) string {
	switch server := f.process(w.Server); {
	case isStopped(server):
		return "the process of " + w.Server + " is stopped by a signal"
	case w.To.ZeroWindow:
		return w.Server + " does not read: its receive window is closed, " + page.BytesText(float64(w.To.Unsent)) + " are queued"
	case w.To.stuck():
		return fmt.Sprintf("nothing reaches %s: %s", w.Server, w.To.lost())
	case w.Back.stuck():
		return fmt.Sprintf("the answer does not reach %s: %s", w.Worker, w.Back.lost())
	case w.Back.ZeroWindow:
		return w.Worker + " does not read answers: its receive window is closed"
	case server == 'D':
		return "the process of " + w.Server + " waits for a disk"
	case w.To.Known:
		return w.Server + " has received the request and does not answer"
	}
	return ""
}

// silent returns the workers that have asked for nothing for too long and wait for nobody, as
// far as their messages show: a scheduler's release, or an answer, may not have arrived.
func (f *stallFacts) silent() (stalls []stall) {
	for _, w := range f.Workers {
		if !w.Here || w.Last.IsZero() || (w.Waiting || f.Blind) && !isStopped(w.Process) {
			continue
		}
		quiet, limit := f.Now.Sub(w.Last), max(patience, silentSteps*w.StepEvery)
		// How long a step takes is unknown before the second one.
		if w.StepEvery == 0 {
			limit = firstStep
		}
		on, why := "", "it is computing or hung"
		switch {
		case isStopped(w.Process):
			limit, why = stopped, "its process is stopped by a signal"
		// Long steps do not explain segments that do not arrive.
		case w.Cut != nil:
			limit, on = patience, w.Cut.other(w.Name)
			why = fmt.Sprintf("nothing from %s reaches %s: %s", w.Cut.From, w.Cut.To, w.Cut.lost())
		}
		if quiet >= limit {
			stalls = append(stalls, stall{Kind: page.Silent, Who: w.Name, On: on, Since: w.Last, Why: why})
		}
	}
	return stalls
}

// atBarrier returns the workers that have waited at a barrier for too long.
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

// standsStill reports whether no worker makes progress: each is stalled, or waits for one that
// is.
func (f *stallFacts) standsStill(stalls []stall) bool {
	if len(stalls) == 0 {
		return false
	}
	for _, w := range f.Workers {
		if w.Last.IsZero() {
			continue
		}
		stalled := slices.ContainsFunc(stalls, func(s stall) bool { return s.Who == w.Name })
		// It need not have waited for patience itself, as long as somebody has.
		waits := w.Waiting && f.Now.Sub(w.Last) >= stopped
		if !stalled && !waits {
			return false
		}
	}
	return true
}

// lastHeard returns the time of any worker's last message.
func (f *stallFacts) lastHeard() (last time.Time) {
	for _, w := range f.Workers {
		if w.Last.After(last) {
			last = w.Last
		}
	}
	return last
}

// late returns the servers that answer late. Each is compared with the median of the others, so
// that a job that slows down as a whole has none; a single server is compared with its own
// past.
func (f *stallFacts) late() (stalls []stall) {
	for i, s := range f.Servers {
		if s.Recent < lateLeast || s.Answers < 2 {
			continue
		}
		var others []time.Duration
		for k, o := range f.Servers {
			// Servers without answers say nothing about what is usual.
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

// straggling returns the workers that hold the others up. In a synchronous job all workers make
// the same steps, and a straggler is the one that waits less than the others.
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
				Why: fmt.Sprintf("the others wait %.0f%% of the time, this one %.0f%%", 100*median, 100*w.Waited)})
		}
	}
	if 2*len(stalls) > len(waited) {
		return nil // most differ from the median, so none is an exception
	}
	return stalls
}

// verdict names the cause and describes the job's state in a sentence.
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

// cause returns the node or pair of nodes that holds the job up, and the stall that shows it
// best: the server that most workers wait for, unless a stopped process or a broken connection
// explains that.
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
	for _, s := range stalls { // a stopped process explains why others wait for it
		if s.Kind == page.Silent && isStopped(f.process(s.Who)) && !isStopped(f.process(best.On)) {
			return s.Who, s
		}
	}
	if best.Kind == "" {
		for _, s := range stalls {
			if s.Kind == page.Silent && s.On != "" {
				return s.Who + "-" + s.On, s
			}
		}
		for _, s := range stalls {
			if s.Kind != page.AtBarrier {
				return s.Who, s
			}
		}
		return "", stalls[0] // another host may know for whom they wait
	}
	for _, s := range stalls { // a broken connection puts the blame on the pair
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

// process returns the state of a node's process, 0 if unknown.
func (f *stallFacts) process(name string) byte {
	for _, w := range f.Workers {
		if w.Name == name {
			return w.Process
		}
	}
	return f.server(name).Process
}

func isStopped(state byte) bool { return state == 'T' || state == 't' }
