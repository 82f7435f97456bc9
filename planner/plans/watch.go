package plans

import (
	"context"
	"iter"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/plan"
)

const (
	// pieceRanges is how many ranges a piece of a snapshot has.
	pieceRanges = 8192
	// watcherQueue is how many events wait for a watcher before it is given up.
	watcherQueue = 4096
	// maxWatchers is how many may watch at a time.
	maxWatchers = 8192
)

// A watcher is one proxy's Watch.
type watcher struct {
	host   string
	jobs   []string                // none: all
	runs   map[runKey]*api.Running // none: all
	events chan *told
	slow   bool // under Service.mu: it did not keep up, events is closed
}

func (w *watcher) wants(k runKey) bool {
	if len(w.runs) > 0 {
		return w.runs[k] != nil
	}
	return len(w.jobs) == 0 || slices.Contains(w.jobs, k.job)
}

// Watch implements api.PlansServer.
func (s *Service) Watch(r *api.WatchRequest, stream grpc.ServerStreamingServer[api.PlanEvent]) error {
	if len(r.GetRuns()) > maxRunning {
		return status.Errorf(codes.InvalidArgument, "%s carries %d runs: at most %d are possible", r.GetHost(), len(r.GetRuns()), maxRunning)
	}
	w := &watcher{host: r.GetHost(), jobs: r.GetJobs(), runs: map[runKey]*api.Running{}, events: make(chan *told, watcherQueue)}
	for _, running := range r.GetRuns() {
		s.beginRun(stream.Context(), running)
		w.runs[runKey{running.GetJob(), plan.Run(running.GetRun())}] = running
	}
	first, err := s.addWatcher(w)
	if err != nil {
		return err
	}
	defer s.removeWatcher(w)
	for _, running := range r.GetRuns() {
		s.prune(context.WithoutCancel(stream.Context()), running.GetJob())
	}
	for _, e := range first {
		if err := stream.SendMsg(e); err != nil {
			return err
		}
	}
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case e, ok := <-w.events:
			if !ok {
				return status.Errorf(codes.ResourceExhausted, "more than %d changes wait for %s: watch again", watcherQueue, r.GetHost())
			}
			if err := stream.SendMsg(e); err != nil {
				return err
			}
		}
	}
}

// addWatcher makes w hear of everything from now on and returns all that is.
func (s *Service) addWatcher(w *watcher) ([]*told, error) {
	// Jobs stay locked until the watcher is registered, so that the events it gets
	// continue where its snapshot ends.
	jobs := s.allRuns()
	for _, j := range jobs {
		j.mu.Lock()
		defer j.mu.Unlock()
	}
	var events []*told
	for _, j := range jobs {
		switch {
		case j.gone || !w.wants(j.key()):
		case j.lost != nil:
			events = append(events, newTold(j.lostEvent()))
		default:
			events = append(events, j.whereKeysAre(w.runs[j.key()])...)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.watchers) >= maxWatchers {
		return nil, status.Errorf(codes.ResourceExhausted, "%d proxies watch already", maxWatchers)
	}
	s.watchers[w] = true
	host := strings.ToLower(w.host)
	if s.watching[host] == nil {
		s.watching[host] = map[*watcher]bool{}
	}
	s.watching[host][w] = true
	clear(s.audiences)
	for _, j := range jobs {
		if !w.wants(j.key()) || j.moving == nil || j.lost != nil {
			continue
		}
		r := w.runs[j.key()]
		if !r.GetRouted() {
			for _, b := range j.moving.told() {
				events = append(events, newTold(j.moveEvent(b)))
			}
			continue
		}
		for _, rank := range r.GetMoves() {
			for _, b := range j.moving.busy[rank].batches {
				events = append(events, newTold(j.moveEvent(b)))
			}
		}
	}
	return append(events, newTold(&api.PlanEvent{Event: &api.PlanEvent_Listed{Listed: true}})), nil
}

func (s *Service) removeWatcher(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watchers, w)
	clear(s.audiences)
	host := strings.ToLower(w.host)
	if delete(s.watching[host], w); len(s.watching[host]) == 0 {
		delete(s.watching, host)
	}
}

// countWatchers returns how many watch the run.
func (s *Service) countWatchers(k runKey) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.audienceOf(k).all)
}

// An audience is the set of watchers of a run.
type audience struct {
	all      []*watcher
	unrouted []*watcher           // watchers that do not name the servers whose moves they make
	movers   map[int32][]*watcher // by server whose moves they say are theirs
}

// audienceOf returns the audience of a run; the caller holds s.mu.
func (s *Service) audienceOf(k runKey) *audience {
	if a := s.audiences[k]; a != nil {
		return a
	}
	a := &audience{movers: map[int32][]*watcher{}}
	for w := range s.watchers {
		if !w.wants(k) {
			continue
		}
		a.all = append(a.all, w)
		r := w.runs[k]
		if !r.GetRouted() {
			a.unrouted = append(a.unrouted, w)
			continue
		}
		for _, rank := range r.GetMoves() {
			a.movers[rank] = append(a.movers[rank], w)
		}
	}
	s.audiences[k] = a
	return a
}

// whoMoves returns the watchers that get moves from a server: those that name it as
// theirs, and those that name none. A batch that nobody makes stays open, and is
// sent to the next watcher that makes it.
func (a *audience) whoMoves(from int32) iter.Seq[*watcher] {
	return func(yield func(*watcher) bool) {
		for _, list := range [][]*watcher{a.movers[from], a.unrouted} {
			for _, w := range list {
				if !yield(w) {
					return
				}
			}
		}
	}
}

// routes reports whether all watchers of the run name the servers whose moves they
// make.
func (s *Service) routes(k runKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.audienceOf(k).unrouted) == 0
}

// tellEvent sends an event to all watchers.
func (s *Service) tellEvent(e *api.PlanEvent) { s.sendToAll(newTold(e)) }

// sendToAll sends an event to all watchers; one that does not keep up is given up.
func (s *Service) sendToAll(e *told) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.audienceOf(e.key()).all {
		w.sendEvent(e)
	}
}

// tellOf sends an event of moves from a server to the watchers that make them.
func (s *Service) tellOf(event *api.PlanEvent, from int32) {
	e := newTold(event)
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.audienceOf(e.key()).whoMoves(from) {
		w.sendEvent(e)
	}
}

// sendEvent sends an event to the watcher, or gives it up; the caller holds
// Service.mu.
func (w *watcher) sendEvent(e *told) {
	if w.slow {
		return
	}
	select {
	case w.events <- e:
	default:
		w.slow = true
		close(w.events)
	}
}

// pieces returns the snapshot of a job.
func (j *job) pieces() []*api.PlanEvent {
	var events []*api.PlanEvent
	var ranges []plan.Range
	flush := func(last bool) {
		e := j.event()
		e.Event = &api.PlanEvent_Snapshot{Snapshot: &api.Snapshot{
			Version: j.version, Epoch: j.lastEpoch(), Displaced: displaced(ranges), First: len(events) == 0, Last: last,
		}}
		events = append(events, e)
		ranges = ranges[:0]
	}
	for r := range j.owners.All() {
		if len(ranges) == pieceRanges {
			flush(false)
		}
		ranges = append(ranges, r)
	}
	flush(true)
	last := events[len(events)-1].GetSnapshot()
	last.Stores, last.Mark = append([]string{j.service.id}, j.stores...), j.mark
	return events
}

func (j *job) moveEvent(b *api.MoveBatch) *api.PlanEvent {
	e := j.event()
	e.Event = &api.PlanEvent_Move{Move: b}
	return e
}
