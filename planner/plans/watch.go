package plans

import (
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
	jobs   []string // none: all
	events chan *api.PlanEvent
	slow   bool // under Service.mu: it did not keep up, events is closed
}

func (w *watcher) wants(job string) bool { return len(w.jobs) == 0 || slices.Contains(w.jobs, job) }

// Watch implements api.PlansServer.
func (s *Service) Watch(r *api.WatchRequest, stream grpc.ServerStreamingServer[api.PlanEvent]) error {
	w := &watcher{jobs: r.GetJobs(), events: make(chan *api.PlanEvent, watcherQueue)}
	first, err := s.join(w)
	if err != nil {
		return err
	}
	defer s.leave(w)
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

// join makes w hear of everything from now on and returns all that is.
func (s *Service) join(w *watcher) ([]*api.PlanEvent, error) {
	// Jobs stay locked until the watcher is among those who are told, so that
	// what it is told goes on where what it is given ends.
	jobs := s.all()
	for _, j := range jobs {
		j.mu.Lock()
		defer j.mu.Unlock()
	}
	var events []*api.PlanEvent
	for _, j := range jobs {
		if w.wants(j.name) && !j.gone {
			events = append(events, j.pieces()...)
		}
	}
	for _, j := range jobs {
		if w.wants(j.name) && j.moving != nil {
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

// watching returns how many watch the job.
func (s *Service) watching(job string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watchers {
		if w.wants(job) {
			n++
		}
	}
	return n
}

// tell sends an event to all watchers; one that does not keep up is given up.
func (s *Service) tell(e *api.PlanEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watchers {
		if !w.wants(e.GetJob()) || w.slow {
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
	return events
}

func (j *job) moveEvent(b *api.MoveBatch) *api.PlanEvent {
	e := j.event()
	e.Event = &api.PlanEvent_Move{Move: b}
	return e
}
