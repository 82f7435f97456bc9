package plans

import (
	"context"
	"iter"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
)

const (
	// pieceRanges is how many ranges a piece of a snapshot has, on the wire and in the store.
	pieceRanges = 8192
	// watcherQueue is how many events may wait for one watcher. A watcher that is further behind is
	// dropped; a snapshot is cheaper for it than the backlog.
	watcherQueue = 4096
	// maxWatchers is how many proxies may watch at a time.
	maxWatchers = 8192
	// mostWatched bounds the memory of what all of them carry, in bytes, and mostWatchedOfHost that
	// of one host.
	mostWatched       = 128 << 20
	mostWatchedOfHost = mostWatched / 8
)

// A watcher is one proxy's Watch stream. host, jobs and runs do not change. Events are queued under
// Service.mu and sent by the goroutine of the stream, so that a slow proxy never blocks a Record.
type watcher struct {
	host string
	// The jobs to hear of; none means all.
	jobs []string
	// The runs that the proxy carries, with what it has seen of each. If there are any, it hears of
	// no others.
	runs   map[runKey]*api.Running
	size   int // of jobs and runs, in bytes
	events chan *told
	// slow is set, under Service.mu, when events was full. events is closed then, and nothing more
	// is queued.
	slow bool
}

// wants reports whether the watcher hears of a run.
func (w *watcher) wants(k runKey) bool {
	if len(w.runs) > 0 {
		return w.runs[k] != nil
	}
	return len(w.jobs) == 0 || slices.Contains(w.jobs, k.job)
}

// Watch implements api.PlansServer. The proxy first receives the owners of its runs and the open
// batches, then an event that marks the end of the list, then everything as it happens.
//
// A proxy holds requests for keys of a run until it has the run's owners, so nothing that blocks
// for long may come before them.
func (s *Service) Watch(r *api.WatchRequest, stream grpc.ServerStreamingServer[api.PlanEvent]) error {
	if err := checkWatch(r); err != nil {
		return err
	}
	w := &watcher{host: r.GetHost(), jobs: r.GetJobs(), size: sizeOfWatch(r), runs: map[runKey]*api.Running{}, events: make(chan *told, watcherQueue)}
	var begun []*job
	for _, running := range r.GetRuns() {
		// Runs are registered before the watcher: what the proxy has seen decides whether the store
		// still knows the run.
		if j := s.beginRun(stream.Context(), running); j != nil {
			begun = append(begun, j)
		}
		w.runs[runKey{running.GetJob(), plan.Run(running.GetRun())}] = running
	}
	first, err := s.addWatcher(w)
	if err != nil {
		return err
	}
	defer s.removeWatcher(w)
	// A run that was dropped before the watcher was registered is not among the first events, and
	// the proxy would wait for its owners. The next Watch registers it again.
	for _, j := range begun {
		if j.isGone() {
			return status.Errorf(codes.Unavailable, "run %s of job %s was dropped just now: watch again", j.run, j.name)
		}
	}
	// A new run makes an old one superfluous. This is after registration, so that the runs of this
	// proxy count as carried.
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
				return status.Errorf(codes.ResourceExhausted, "more than %d changes are queued for %s: watch again", watcherQueue, w.host)
			}
			if err := stream.SendMsg(e); err != nil {
				return err
			}
		}
	}
}

// checkWatch refuses a request that names more than a proxy can have. Repeated servers are dropped:
// each is sent its moves once.
func checkWatch(r *api.WatchRequest) error {
	if n := max(len(r.GetRuns()), len(r.GetJobs())); n > maxRunning {
		return status.Errorf(codes.InvalidArgument, "%.300s carries %d runs: at most %d are possible", r.GetHost(), n, maxRunning)
	}
	for _, running := range r.GetRuns() {
		if n := len(running.GetMoves()); n > MaxServers {
			return status.Errorf(codes.InvalidArgument, "%.300s moves keys of %d servers of job %.300s: it has at most %d", r.GetHost(), n, running.GetJob(), MaxServers)
		}
		slices.Sort(running.GetMoves())
		running.Moves = slices.Compact(running.GetMoves())
	}
	return nil
}

// sizeOfWatch returns the memory that a watcher takes of its request, roughly.
func sizeOfWatch(r *api.WatchRequest) int {
	const each = 256 // of a message, its strings' headers, and its entries in maps
	n := each
	for _, job := range r.GetJobs() {
		n += each + len(job)
	}
	for _, running := range r.GetRuns() {
		n += each + 2*(len(running.GetJob())+len(running.GetRun())) + len(running.GetStore()) + 4*len(running.GetMoves())
	}
	return n
}

// addWatcher registers a watcher and returns the events that bring it up to date.
func (s *Service) addWatcher(w *watcher) ([]*told, error) {
	// Jobs stay locked until the watcher is registered, so that the events it gets
	// continue where its snapshot ends.
	jobs := s.allRuns()
	for _, j := range jobs {
		j.mu.Lock()
		defer j.mu.Unlock()
	}
	for _, j := range jobs {
		if w.wants(j.key()) && !j.gone {
			if err := j.settle(context.Background()); err != nil {
				return nil, err
			}
		}
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
	host := strings.ToLower(w.host)
	ofHost := w.size
	for other := range s.watching[host] {
		ofHost += other.size
	}
	if ofHost > mostWatchedOfHost || s.watched+w.size > mostWatched {
		return nil, status.Errorf(codes.ResourceExhausted, "the runs of %.300s take %d bytes of memory, at most %d are kept; those of all hosts %d, at most %d", w.host, ofHost, mostWatchedOfHost, s.watched+w.size, mostWatched)
	}
	s.watched += w.size
	s.watchers[w] = true
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
			// An older proxy does not name the servers whose keys it moves. It gets all moves and
			// ignores those of others.
			for _, b := range j.moving.told() {
				events = append(events, newTold(j.moveEvent(b)))
			}
			continue
		}
		// A batch stays open across a reconnect: the proxy that comes back may have finished it,
		// and its report closes it.
		for _, rank := range r.GetMoves() {
			for _, b := range j.moving.busy[rank].batches {
				events = append(events, newTold(j.moveEvent(b)))
			}
		}
	}
	return append(events, newTold(&api.PlanEvent{Event: &api.PlanEvent_Listed{Listed: true}})), nil
}

// removeWatcher forgets a watcher whose stream has ended.
func (s *Service) removeWatcher(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watchers, w)
	s.watched -= w.size
	clear(s.audiences)
	host := strings.ToLower(w.host)
	if delete(s.watching[host], w); len(s.watching[host]) == 0 {
		delete(s.watching, host)
	}
}

// countWatchers returns how many proxies hear of a run.
func (s *Service) countWatchers(k runKey) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.audienceOf(k).all)
}

// An audience is the set of watchers of one run, split by who is sent which moves. It is not
// changed once built.
type audience struct {
	all []*watcher
	// Watchers that do not name the servers whose keys they move. They get the moves of all
	// servers.
	unrouted []*watcher
	// Watchers by the rank of the servers whose keys they move.
	movers map[int32][]*watcher
}

// audienceOf returns the audience of a run, from the cache if no watcher has come or left since.
// The caller holds s.mu.
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

// whoMoves yields the watchers that are sent the moves of keys away from a server: those that name
// it, and those that name none. If there is no such watcher the batch stays open, and the next one
// that registers for the server receives it.
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

// routes reports whether every watcher of the run names the servers whose keys it moves. Then a
// batch costs one event, and many may be open.
func (s *Service) routes(k runKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.audienceOf(k).unrouted) == 0
}

// tellEvent sends an event to all watchers of its run.
func (s *Service) tellEvent(e *api.PlanEvent) { s.sendToAll(newTold(e)) }

// sendToAll queues an event for all watchers of its run. The callers hold the run's mutex, which is
// what keeps the events of a run in order.
func (s *Service) sendToAll(e *told) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.audienceOf(e.key()).all {
		w.sendEvent(e)
	}
}

// tellOf queues an event about moves away from a server for the watchers that make them.
func (s *Service) tellOf(event *api.PlanEvent, from int32) {
	e := newTold(event)
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.audienceOf(e.key()).whoMoves(from) {
		w.sendEvent(e)
	}
}

// sendEvent queues an event, or gives the watcher up if its queue is full: its stream then ends
// with RESOURCE_EXHAUSTED, and the proxy watches again. The caller holds Service.mu.
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

// pieces returns the snapshot of the owners as events, at least one. The proxy replaces its copy
// only when the last piece has arrived. The caller holds j.mu, or j is gone.
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
