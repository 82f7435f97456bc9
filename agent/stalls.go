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

	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/proxy/pslite"
)

const (
	// stallEvery is how often it is looked whether jobs go on.
	stallEvery = time.Second
	// quietAfter is after how long without an answer, or a message, sockets and
	// processes are asked why.
	quietAfter = 2 * time.Second
)

// now is the time by the clock that messages are timed by.
func (a *Agent) now() time.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // it exists on every Linux
	}
	return time.Unix(0, ts.Nano()+a.wall)
}

// findStalls looks whether each job goes on.
func (a *Agent) findStalls() error {
	found, blind := map[string]stallFinding{}, a.lookBlind()
	for _, v := range a.observer.Jobs() {
		name := v.Job.Scheduler.String()
		facts := a.facts(&v)
		facts.Blind = blind != ""
		now := findStall(facts)
		found[name] = now
		a.logFinding(name, &now)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.findings, a.blind = found, blind
	maps.DeleteFunc(a.logged, func(job string, _ finding) bool { return found[job].State == "" })
	return nil
}

// loggedAfter is how long a job must have stood still, or waited for somebody, when
// it is logged: shorter stalls appear in status, page and metrics only.
const loggedAfter = 5 * time.Second

// finding is what was logged of a job last.
type finding struct{ state, cause string }

// logFinding logs that a job stands still, or is held up, and that it goes on.
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

// facts gathers the facts about a job at this moment.
func (a *Agent) facts(v *observe.JobView) *stallFacts {
	now := a.now()
	f := &stallFacts{Now: now, First: moment(v.First), Last: moment(v.Last)}
	lately := v.Job.Sums.Lately(now.UnixNano(), recently)
	workers, waits := v.Job.Sums.Now()
	quiet := now.Sub(f.Last) >= quietAfter || len(waits) > 0 && now.Sub(moment(waits[0].Since)) >= quietAfter
	pids := map[string]int{}
	for _, n := range v.Nodes {
		pids[n.Name] = n.Process.PID
	}
	senders := a.observer.Senders(v.Job.Scheduler.String())
	f.Alive = a.alive(v, pids, senders)
	for i, name := range v.WorkersByIndex {
		if name == "" {
			continue
		}
		w := worker{Name: name, Here: pids[name] != 0 || senders[name]}
		if i < len(workers) {
			state := workers[i]
			w.Last, w.Barrier, w.Waiting, w.StepEvery = moment(state.Last), moment(state.Barrier), state.Waiting, state.StepEvery
			w.Waited = lately.Waited[i]
			if now.Sub(w.Last) >= quietAfter {
				w.Process = a.processState(pids[name])
			}
		}
		f.Workers = append(f.Workers, w)
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
		if now.Sub(moment(waits[i].Since)) >= quietAfter && len(f.Waits) < maxPairs {
			f.Waits = append(f.Waits, waitOf(v, &waits[i], a.opts.Names.Map()))
		}
	}
	if len(f.Waits) > 0 {
		a.askSockets(v, f)
	}
	return f
}

func moment(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

// alive reports whether a process of the job runs on this host: one that is known
// by its number, or, where none is, one that has a connection.
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

// runs reports whether the process was a node of that job when it was looked at
// last: its number may be another's by now.
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

// processState returns the state of a process, such as R, S, T or Z; 0 if there
// is none.
func (a *Agent) processState(pid int) byte {
	if pid == 0 {
		return 0
	}
	text, err := fs.ReadFile(a.procs.proc, strconv.Itoa(pid)+"/stat")
	if err != nil {
		return 0
	}
	_, after, ok := strings.Cut(string(text[max(strings.LastIndexByte(string(text), ')'), 0):]), " ")
	if !ok || after == "" {
		return 0
	}
	return after[0]
}

// waitOf converts a request in flight to names for people.
func waitOf(v *observe.JobView, w *counts.Wait, keys *page.NameMap) wait {
	out := wait{Since: moment(w.Since), Bytes: w.Bytes, Requests: w.Requests}
	if w.Worker < len(v.WorkersByIndex) {
		out.Worker = v.WorkersByIndex[w.Worker]
	}
	if w.Server < len(v.ServersByIndex) {
		out.Server = v.ServersByIndex[w.Server]
	}
	switch {
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

// keysText says which keys a request is for: as seen, else the server's range.
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

// askSockets finds out how the connections get on whose requests wait.
func (a *Agent) askSockets(v *observe.JobView, f *stallFacts) {
	type ends struct{ from, to string }
	links := map[ends]observe.Link{}
	for _, l := range a.observer.Links(v.Job.Scheduler.String()) {
		links[ends{l.From, l.To}] = l
	}
	tables := map[string]map[discover.Ends]discover.Connection{} // by namespace
	ask := func(from, to string) socket {
		l, ok := links[ends{from, to}]
		if !ok {
			return socket{}
		}
		process := filepath.Join(a.opts.Proc, strconv.Itoa(l.PID))
		ns, err := os.Readlink(filepath.Join(process, "ns/net"))
		if err != nil {
			return socket{} // it has ended
		}
		table, ok := tables[ns]
		if !ok {
			if table, err = discover.Connections(filepath.Join(process, "ns/net")); err != nil {
				slog.Debug("asking for sockets", "pid", l.PID, "error", err)
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
}
