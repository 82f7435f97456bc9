package life

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
)

// lastJobs is how long before the end of a life no job is begun any more.
const lastJobs = 8 * time.Second

// slotState is what runs in a slot, for the events of other goroutines.
type slotState struct {
	mu    sync.Mutex // guards the rest
	ipv6  bool
	busy  bool          // a job runs
	lossy map[bool]bool // whether rules of the name with an IPv6 address, or not, leave values out
}

// run is a job on its way. Its goroutine alone uses it, except for the track.
type run struct {
	spec
	slot         int
	began, ended time.Time
	track        *track
	running      *hosts.Running
	lossy        bool // some of the time
}

// runJobs runs jobs in a slot, one after the other, until the end of the life.
func (l *Life) runJobs(ctx context.Context, slot int) {
	for n := 1; ctx.Err() == nil; n++ {
		r := rand.New(rand.NewPCG(l.config.Seed, uint64(slot+1)<<40|uint64(n)))
		if !pause(ctx, time.Duration(r.IntN(3000))*time.Millisecond) || time.Until(l.end) < lastJobs {
			return
		}
		s := drawJob(l.config.Seed, slot, n)
		if l.config.Sums {
			s.bringTogether(r)
		}
		s.name = fmt.Sprintf("%d.%d %s", slot, n, s.name)
		late := time.Time{}
		if l.config.Late > 0 {
			late = l.end.Add(l.config.Late)
		}
		l.runJob(ctx, slot, s, late)
	}
}

// pause waits for d, and reports whether ctx has not ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// jobName returns the name of a slot's present or last job: its scheduler's address.
func (l *Life) jobName(slot int) string {
	s := &l.ports[slot]
	s.mu.Lock()
	defer s.mu.Unlock()
	first := l.fleet.net.Host(0)
	address := first.IPv4.String()
	if s.ipv6 {
		address = first.IPv6.String()
	}
	return net.JoinHostPort(address, strconv.Itoa(portOf(slot)))
}

// programs returns what the nodes of a job run, its workers with the arguments.
func (s spec) programs(p programs, d data) (node, worker hosts.Program) {
	node = hosts.Program{p.psjob, "--json"}
	if s.model == "peer" {
		node = hosts.Program{p.peer}
	}
	if s.model == "pattern" { // all nodes go by it
		node = append(hosts.Program{p.pattern}, s.args...)
		return node, node
	}
	return node, append(node[:len(node):len(node)], d.files(s.args)...)
}

// runJob runs a job to its end, or ends it when it makes no step any more, and judges it. At
// the time late it is cut short without judgement, unless late is zero.
func (l *Life) runJob(ctx context.Context, slot int, s spec, late time.Time) {
	r := &run{spec: s, slot: slot, began: time.Now()}
	l.occupy(r, true)
	defer l.occupy(r, false)
	l.journal.say("begins: %s", s.name)
	folder := l.journal.path("logs", "job-"+strings.Map(plain, s.name[:min(len(s.name), 20)]))
	// Before the job starts: its nodes write to the track from their first line on.
	r.track = newTrack(&l.patience, s.workers, folder)
	node, worker := s.programs(l.fleet.programs, l.data)
	runs, cancel := context.WithCancel(ctx)
	defer cancel()
	var err error
	all := l.fleet.net.Hosts()
	at := all
	if s.together > 0 {
		at = all[s.together-1 : s.together]
	}
	r.running, err = hosts.Job{Scheduler: node, Servers: hosts.Repeat(s.servers, node), Workers: hosts.Repeat(s.workers, worker), Hosts: all, WorkerHosts: at,
		IPv6: s.ipv6, Port: portOf(slot), Group: groupOf(slot), Env: append([]string{"PSJOB_LOG_EVERY=500ms"}, s.env...), Log: r.track.log}.Start(runs)
	if err != nil {
		l.journal.fail("%s: %v", s.name, err)
		return
	}
	ended := make(chan error, 1)
	go func() { ended <- r.running.Wait() }()
	for {
		select {
		case err := <-ended:
			r.ended = time.Now()
			l.judge(ctx, r, err)
			return
		case <-time.After(100 * time.Millisecond):
		}
		r.lossy = r.lossy || l.isLossy(slot)
		if why := l.hangs(r); why != "" {
			r.ended = time.Now()
			state := l.snapshot(slot)
			// A dump ends all services, so it is made only when the life ends with this failure
			// anyway.
			if _, m := r.track.waiting(); l.excuse(r, m.at) == "" && l.journal.isLast() {
				l.fleet.dump() // while the connections are there
			}
			// After the snapshot: it ends the job's connections.
			r.dump(ended)
			cancel()
			<-ended
			l.judgeHang(r, why, state)
			return
		}
		if !late.IsZero() && time.Now().After(late) {
			cancel()
			<-ended
			r.ended = time.Now()
			l.ended(r, cutRun)
			r.track.close(true)
			_, m := r.track.waiting()
			l.journal.say("cut short at step %d of %d: %s", m.step, m.of, r.name)
			return
		}
	}
}

// dump makes the nodes of a job print where they are, which ends them.
func (r *run) dump(ended chan error) {
	if r.model == "peer" {
		return // it would not say
	}
	for _, n := range r.running.Nodes() {
		n.Signal(syscall.SIGQUIT) // it may have ended
	}
	select {
	case err := <-ended:
		ended <- err
	case <-time.After(5 * time.Second):
	}
}

// plain replaces characters that should not be in file names.
func plain(c rune) rune {
	if strings.ContainsRune(" ,=/:", c) {
		return '-'
	}
	return c
}

// occupy notes that a job runs in its slot, or not any more.
func (l *Life) occupy(r *run, busy bool) {
	s := &l.ports[r.slot]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy, s.ipv6 = busy, r.ipv6
}

// isBusy reports whether a job runs in a slot.
func (l *Life) isBusy(slot int) bool {
	s := &l.ports[slot]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.busy
}

// isLossy reports whether rules of a slot's present job leave values out.
func (l *Life) isLossy(slot int) bool {
	s := &l.ports[slot]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lossy[s.ipv6]
}

// setLossy notes that rules of a slot's present job leave values out, or not any more. They
// stay with the job's name, for later jobs.
func (l *Life) setLossy(slot int, lossy bool) {
	s := &l.ports[slot]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lossy == nil {
		s.lossy = map[bool]bool{}
	}
	s.lossy[s.ipv6] = lossy
}

// hangs returns why a job counts as hanging, empty if it does not: one of its workers has made
// no step for too long, by the patient clock and not counting what held it.
func (l *Life) hangs(r *run) string {
	worker, m := r.track.waiting()
	if r.model == "mix" { // whose customers each have steps of their own
		worker, m = -1, r.track.last()
	}
	since := l.harms.excused(m.at)
	if l.excuse(r, m.at) != "" {
		since = m.at // what is lost does not come later
	}
	crawl := time.Since(since)
	// The time that is excused counts as spent, whether or not there was a processor to spare.
	spare := l.patience.now() - m.spare - since.Sub(m.at)
	if spare < mayHang && crawl < mayCrawl {
		return ""
	}
	return fmt.Sprintf("worker %d has made no step for %.1f s (%.1f s with a processor to spare, %.1f s of them after what held it) since step %d of %d",
		worker, time.Since(m.at).Seconds(), (l.patience.now() - m.spare).Seconds(), crawl.Seconds(), m.step, m.of)
}

// snapshot returns what proxies and planner say about their state at this moment, the planner
// about a slot's job, and the hosts' TCP sockets, for people.
func (l *Life) snapshot(slot int) string {
	states := make([]string, len(l.fleet.sidecars))
	var asking sync.WaitGroup
	for i, s := range l.fleet.sidecars { // at once: one may be stopped, and then killed
		asking.Go(func() {
			state, err := l.fleet.connections(i)
			text, _ := json.Marshal(state)
			states[i] = fmt.Sprintf("--- proxy on %s: %v\n%s\n", s.host.Name, err, text)
		})
	}
	asking.Wait()
	var all strings.Builder
	all.WriteString(strings.Join(states, ""))
	text, err := hoststest.Get(l.fleet.planner.Host, plannerHTTP, "/api/v1/plan?job="+url.QueryEscape(l.jobName(slot)))
	fmt.Fprintf(&all, "--- planner: %v\n%s\n", err, text)
	for _, s := range l.fleet.sidecars {
		var out bytes.Buffer
		cmd := exec.Command("ss", "-H", "-t", "-a", "-n", "-p", "-i")
		cmd.Stdout, cmd.Stderr = &out, &out
		err := s.host.Run(context.Background(), cmd)
		fmt.Fprintf(&all, "--- sockets of %s: %v\n%s\n", s.host.Name, err, out.Bytes())
	}
	return all.String()
}

// write keeps a text in the folder.
func (j *journal) write(name, text string) {
	if err := os.WriteFile(j.path(name), []byte(text), 0o644); err != nil {
		j.say("writing %s: %v", name, err)
	}
}
