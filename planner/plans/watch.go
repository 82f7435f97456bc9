package plans

import (
	"context"
	"slices"

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
	events chan *api.PlanEvent
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
	w := &watcher{host: r.GetHost(), jobs: r.GetJobs(), runs: map[runKey]*api.Running{}, events: make(chan *api.PlanEvent, watcherQueue)}
	for _, running := range r.GetRuns() {
		s.begin(stream.Context(), running)
		w.runs[runKey{running.GetJob(), plan.Run(running.GetRun())}] = running
	}
	first, err := s.addWatcher(w)
	if err != nil {
		return err
	}
	defer s.leave(w)
	for _, running := range r.GetRuns() {
		s.prune(context.WithoutCancel(stream.Context()), running.GetJob())
	}
	for _, e := range first {
		if err := stream.Send(e); err != nil {
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
			if err := stream.Send(e); err != nil {
				return err
			}
		}
	}
}

// addWatcher makes w hear of everything from now on and returns all that is.
func (s *Service) addWatcher(w *watcher) ([]*api.PlanEvent, error) {
	// Jobs stay locked until the watcher is among those who are told, so that
	// what it is told goes on where what it is given ends.
	jobs := s.allRuns()
	for _, j := range jobs {
		j.mu.Lock()
		defer j.mu.Unlock()
	}
	var events []*api.PlanEvent
	for _, j := range jobs {
		switch {
		case j.gone || !w.wants(j.key()):
		case j.lost != nil:
			events = append(events, j.lostEvent())
		default:
			events = append(events, j.pieces()...)
		}
	}
	for _, j := range jobs {
		if w.wants(j.key()) && j.moving != nil && j.lost == nil {
			for _, b := range j.moving.open {
				events = append(events, j.moveEvent(b))
			}
		}
	}
	events = append(events, &api.PlanEvent{Event: &api.PlanEvent_Listed{Listed: true}})
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.watchers) >= maxWatchers {
		return nil, status.Errorf(codes.ResourceExhausted, "%d proxies watch already", maxWatchers)
	}
	s.watchers[w] = true
	return events, nil
}

func (s *Service) leave(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watchers, w)
}

// watching returns how many watch the run.
func (s *Service) watching(k runKey) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watchers {
		if w.wants(k) {
			n++
		}
	}
	return n
}

// tell sends an event to all watchers; one that does not keep up is given up.
func (s *Service) tell(e *api.PlanEvent) {
	k := runKey{e.GetJob(), plan.Run(e.GetRun())}
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watchers {
		if !w.wants(k) || w.slow {
			continue
		}
		select {
		case w.events <- e:
		default:
			w.slow = true
			close(w.events)
		}
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
	last.Stores = append([]string{j.service.id}, j.stores...)
	return events
}

func (j *job) moveEvent(b *api.MoveBatch) *api.PlanEvent {
	e := j.event()
	e.Event = &api.PlanEvent_Move{Move: b}
	return e
}
