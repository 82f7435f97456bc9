package agent

import (
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/agent/observe"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

const (
	// stallEvery is the interval of the diagnosis.
	stallEvery = time.Second
	// quietAfter is how long an answer or a message must be missing before sockets and
	// processes are examined, which costs system calls.
	quietAfter = 2 * time.Second
	// maxSilent bounds the silent workers whose connections are examined.
	maxSilent = 64
)

// now returns the time by the clock of messages: CLOCK_MONOTONIC with a fixed offset. It
// differs from the wall clock after that was stepped.
func (a *Agent) now() time.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // it exists on every Linux
	}
	return time.Unix(0, ts.Nano()+a.wall)
}

// findStalls diagnoses each job, once a second, and logs what has changed.
func (a *Agent) findStalls() error {
	// If the capture itself is behind or loses much, silence proves nothing.
	found, blind := map[string]stallFinding{}, a.lookBlind()
	for _, v := range a.observer.Jobs() {
		name := v.Job.Scheduler.String()
		// Without a.mu: gathering them takes system calls, and the page must not wait for
		// those.
		facts := a.facts(&v)
		facts.Blind = blind != ""
		now := findStall(facts)
		found[name] = now
		a.logFinding(name, &now)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.findings, a.blind = found, blind
	// Jobs that are no longer known would otherwise stay for ever.
	maps.DeleteFunc(a.logged, func(job string, _ finding) bool { return found[job].State == "" })
	return nil
}

// loggedAfter is how long a stall must last before it is logged. Shorter ones appear in status,
// page and metrics only.
const loggedAfter = 5 * time.Second

// finding is what was last logged of a job.
type finding struct{ state, cause string }

// logFinding logs that a job is stalled or held up, once for each cause, and that it continues.
func (a *Agent) logFinding(job string, now *stallFinding) {
	before, is := a.logged[job], finding{now.State, now.Cause}
	since := now.Since
	if since.IsZero() && len(now.Stalls) > 0 {
		since = now.Stalls[0].Since
	}
	lasts := now.Text != "" && !since.IsZero() && a.now().Sub(since) >= loggedAfter
	switch {
	case now.State == page.Stalled && lasts && is != before:
		slog.Warn("job stalled", "job", job, "cause", now.Cause, "what", now.Text)
	case now.State == page.Running && lasts && is != before:
		slog.Info("job is held up", "job", job, "cause", now.Cause, "what", now.Text)
	case now.State != page.Stalled && before.state == page.Stalled:
		slog.Info("job "+now.State, "job", job)
	default:
		return
	}
	a.logged[job] = is
}

// facts gathers the facts about a job. Counters are always read; processes and sockets only
// where something has been quiet for quietAfter.
func (a *Agent) facts(v *observe.JobView) *stallFacts {
	now := a.now()
	f := &stallFacts{Now: now, First: moment(v.First), Last: moment(v.Last)}
	lately := v.Job.Sums.Lately(now.UnixNano(), recently)
	workers, waits := v.Job.Sums.Now()
	// Reading the state of every process each second would cost more than the diagnosis.
	quiet := now.Sub(f.Last) >= quietAfter || len(waits) > 0 && now.Sub(moment(waits[0].Since)) >= quietAfter
	// By the nodes' names; 0 for nodes on other hosts.
	pids := map[string]int{}
	for _, n := range v.Nodes {
		pids[n.Name] = n.Process.PID
	}
	senders := a.observer.Senders(v.Job.Scheduler.String())
	f.Alive = a.alive(v, pids, senders)
	f.Workers = workersOf(v.WorkersByIndex, workers, lately.Waited)
	for i := range f.Workers {
		w := &f.Workers[i]
		w.Here = pids[w.Name] != 0 || senders[w.Name]
		if now.Sub(w.Last) >= quietAfter {
			w.Process = a.processState(pids[w.Name])
		}
	}
	times := v.Job.Sums.ServerTimes(now.Add(-recently).UnixNano())
	for i, name := range v.ServersByIndex {
		if name == "" {
			continue
		}
		s := server{Name: name}
		if i < len(times) {
			s.Recent, s.Before, s.Answers = times[i].Recent, times[i].Before, times[i].Answers
		}
		if quiet {
			s.Process = a.processState(pids[name])
		}
		f.Servers = append(f.Servers, s)
	}
	for _, w := range lately.Stragglers() {
		if w < len(v.WorkersByIndex) && v.WorkersByIndex[w] != "" {
			f.Stragglers = append(f.Stragglers, v.WorkersByIndex[w])
		}
	}
	for i := range waits {
		// waits is sorted, so the bound keeps the longest.
		if now.Sub(moment(waits[i].Since)) >= quietAfter && len(f.Waits) < maxPairs {
			f.Waits = append(f.Waits, waitOf(v, &waits[i], a.opts.Names.Map()))
		}
	}
	a.askSockets(v, f)
	return f
}

// workersOf returns what the counts show of the workers with these names, which are in the order of
// the counts and empty for workers that are not shown. Workers appear at any time, so each list,
// asked for at another moment, may be shorter than the others.
func workersOf(names []string, states []counts.WorkerNow, waited []float64) (all []worker) {
	for i, name := range names {
		if name == "" {
			continue
		}
		w := worker{Name: name}
		if i < len(states) {
			s := &states[i]
			w.Last, w.Barrier, w.Waiting, w.StepEvery = moment(s.Last), moment(s.Barrier), s.Waiting, s.StepEvery
		}
		if i < len(waited) {
			w.Waited = waited[i]
		}
		all = append(all, w)
	}
	return all
}

// moment converts nanoseconds since 1970; 0 is the zero time.
func moment(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

// alive reports whether a process of the job runs on this host. If no process is known, open
// connections count instead.
func (a *Agent) alive(v *observe.JobView, pids map[string]int, senders map[string]bool) bool {
	known := false
	for _, pid := range pids {
		if pid == 0 {
			continue
		}
		known = true
		if state := a.processState(pid); state != 0 && state != 'Z' && state != 'X' && a.procs.runs(pid, v.Job.Scheduler.String()) {
			return true
		}
	}
	return !known && len(senders) > 0
}

// runs reports whether a process was a node of that job at the last scan. The PID alone proves
// nothing, since it may have been reused.
func (p *processes) runs(pid int, job string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.snapshot.Processes {
		if q := &p.snapshot.Processes[i]; q.PID == pid {
			return q.Scheduler.String() == job
		}
	}
	return false
}

// processState returns the state letter of a process, such as R, S, T or Z; 0 if there is none.
func (a *Agent) processState(pid int) byte {
	if pid == 0 {
		return 0
	}
	text, err := fs.ReadFile(a.procs.proc, strconv.Itoa(pid)+"/stat")
	if err != nil {
		return 0
	}
	// The name before it, in parentheses, may contain spaces and parentheses, so the last one
	// counts.
	_, after, ok := strings.Cut(string(text[max(strings.LastIndexByte(string(text), ')'), 0):]), " ")
	if !ok || after == "" {
		return 0
	}
	return after[0]
}

// waitOf converts a request in flight, with names in place of numbers.
func waitOf(v *observe.JobView, w *counts.Wait, keys *page.NameMap) wait {
	out := wait{Since: moment(w.Since), Bytes: w.Bytes, Requests: w.Requests}
	if w.Worker < len(v.WorkersByIndex) {
		out.Worker = v.WorkersByIndex[w.Worker]
	}
	if w.Server < len(v.ServersByIndex) {
		out.Server = v.ServersByIndex[w.Server]
	}
	switch {
	// The words of PS-lite's own functions.
	case w.Push && w.Pull:
		out.Kind = "pushpull"
	case w.Push:
		out.Kind = "push"
	default:
		out.Kind = "pull"
	}
	out.Keys = keysText(v, out.Server, w)
	if name := keys.Keys(v.Job.Scheduler.String(), w.First, w.Last); w.Keyed && name != "" {
		out.Keys += " (" + name + ")"
	}
	return out
}

// keysText describes the keys of a request: their range if it was seen, else the server's.
func keysText(v *observe.JobView, server string, w *counts.Wait) string {
	if w.Keyed {
		return fmt.Sprintf("keys %d to %d", w.First, w.Last)
	}
	rank, err := strconv.Atoi(strings.TrimPrefix(server, "server"))
	if err != nil || v.Servers == 0 {
		return ""
	}
	if rank >= v.Servers {
		return ""
	}
	first, end := pslite.KeyRange(rank, v.Servers)
	return fmt.Sprintf("keys from %d to %d", first, end-1)
}

// askSockets fills in the state of the connections of waiting requests, and of those of workers
// that have been silent for quietAfter and wait for nobody. The sockets of each network
// namespace are dumped once.
func (a *Agent) askSockets(v *observe.JobView, f *stallFacts) {
	var silent []*worker
	for i := range f.Workers {
		if w := &f.Workers[i]; !w.Waiting && !w.Last.IsZero() && f.Now.Sub(w.Last) >= quietAfter && len(silent) < maxSilent {
			silent = append(silent, w)
		}
	}
	if len(f.Waits) == 0 && len(silent) == 0 {
		return
	}
	all := a.observer.Links(v.Job.Scheduler.String())
	type ends struct{ from, to string }
	links := map[ends]observe.Link{}
	for _, l := range all {
		links[ends{l.From, l.To}] = l
	}
	tables := map[string]map[discover.Ends]discover.Connection{} // by namespace
	ask := func(from, to string) socket {
		l, ok := links[ends{from, to}]
		if !ok {
			return socket{}
		}
		// Any process of the namespace will do to enter it; the sender is at hand.
		process := filepath.Join(a.opts.Proc, strconv.Itoa(l.PID))
		ns, err := os.Readlink(filepath.Join(process, "ns/net"))
		if err != nil {
			return socket{} // it has ended
		}
		table, ok := tables[ns]
		if !ok {
			if table, err = discover.Connections(filepath.Join(process, "ns/net")); err != nil {
				slog.Debug("reading sockets", "pid", l.PID, "error", err)
			}
			tables[ns] = table
		}
		s, ok := table[discover.Ends{Local: l.Local, Peer: l.Peer}]
		return socket{Known: ok, Unacked: s.Unacked, Unsent: s.Unsent, Retries: s.Retries, ZeroWindow: s.ZeroWindow, Silent: s.Silent}
	}
	for i := range f.Waits {
		w := &f.Waits[i]
		w.To, w.Back = ask(w.Worker, w.Server), ask(w.Server, w.Worker)
	}
	for _, w := range silent {
		for _, l := range all {
			if l.From != w.Name && l.To != w.Name {
				continue
			}
			if s := ask(l.From, l.To); s.stuck() {
				w.Cut = &cut{From: l.From, To: l.To, socket: s}
				break
			}
		}
	}
}
