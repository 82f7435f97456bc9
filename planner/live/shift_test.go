package live

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/require"
)

// What the hosts of TestShiftsArePlannedSoon use and how long they take.
const (
	shiftHosts  = 40
	shiftTurned = 8                       // of them turn to each other's keys
	shiftHot    = 60                      // keys that each host uses alone
	shiftCold   = 200                     // others that it draws for each window
	shiftSteps  = 10                      // a second
	shiftLate   = 1200 * time.Millisecond // how much later one in eight hosts tells
	shiftMove   = 100 * time.Millisecond  // what a proxy takes for a batch
	shiftMoving = 32                      // batches that it moves at a time
)

// A shiftHost is an agent that reports, and a proxy that moves keys, by the clock of the
// test's bubble.
type shiftHost struct {
	f      *shiftFleet
	number int
	random *rand.Rand
	zipf   *rand.Zipf
	told   time.Time // when it last told of keys
	pace   time.Duration
	turned time.Time // zero: nobody needs to be told
	moves  chan *api.MoveBatch
}

// A shiftFleet is all of them.
type shiftFleet struct {
	planner *Planner
	service *plans.Service
	run     plan.Run
	began   time.Time

	mu     sync.Mutex // guards the rest
	set    []int      // by host: whose keys it uses
	wanted map[uint64]int32
	moved  map[uint64]int // how often a wanted key was
	when   []time.Time    // each came to where it is wanted
}

func newShiftFleet(t *testing.T) (*shiftFleet, []*shiftHost) {
	service := require.Value(plans.New(t.Context(), &store.Memory{}, plans.Options{Act: true, Strategy: "locality"}))(t)
	f := &shiftFleet{planner: New(service, DefaultOptions), service: service, run: plan.NewRun("", time.Now(), 1), began: time.Now()}
	var hosts []*shiftHost
	for i := range shiftHosts {
		f.set = append(f.set, i)
		random := rand.New(rand.NewPCG(7, uint64(i)))
		hosts = append(hosts, &shiftHost{f: f, number: i, random: random, zipf: rand.NewZipf(random, 1.1, 1, 1e6), pace: 400 * time.Millisecond, moves: make(chan *api.MoveBatch, 1<<14)})
	}
	return f, hosts
}

func shiftKey(n uint64) uint64 { return (n + 1) * 0x9e3779b97f4a7c15 }

func shiftHotKey(set, i int) uint64 { return shiftKey(1<<40 + uint64(set*shiftHot+i)) }

// shift has the first hosts turn to each other's keys, and those tell of it.
func (f *shiftFleet) shift(hosts []*shiftHost) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := f.set[0]
	copy(f.set[:shiftTurned], f.set[1:shiftTurned])
	f.set[shiftTurned-1] = first
	f.wanted, f.moved, f.when = map[uint64]int32{}, map[uint64]int{}, nil
	for h, set := range f.set[:shiftTurned] {
		hosts[h].turned = time.Now()
		if h == shiftTurned/2 {
			hosts[h].turned = hosts[h].turned.Add(shiftLate)
		}
		for i := range shiftHot {
			f.wanted[shiftHotKey(set, i)] = int32(h)
		}
	}
}

// due says whether the host tells now, of what span, and whether because it turned.
func (h *shiftHost) due() (span time.Duration, shifted, due bool) {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	const every = 6400 * time.Millisecond
	now := time.Now()
	wait := now.Sub(h.told)
	if !h.turned.IsZero() && !now.Before(h.turned) {
		h.turned, h.pace = time.Time{}, min(h.pace, 400*time.Millisecond)
	}
	if wait < h.pace {
		return 0, false, false
	}
	shifted = h.pace < every
	h.told, h.pace = now, min(2*h.pace, every)
	return min(wait, every), shifted, true
}

// report is what the host tells of a span.
func (h *shiftHost) report(span time.Duration, shifted bool) *api.HostReport {
	h.f.mu.Lock()
	set := h.f.set[h.number]
	h.f.mu.Unlock()
	steps := max(int(span.Seconds()*shiftSteps), 1)
	uses := map[uint64]uint32{}
	for i := range shiftHot {
		uses[shiftHotKey(set, i)] = uint32(steps)
	}
	for range shiftCold {
		uses[shiftKey(h.zipf.Uint64())]++
	}
	now := time.Now().UnixNano()
	w := &api.Window{FirstUnixNanos: now - int64(span), LastUnixNanos: now, ValueBytes: []uint32{64}, Shifted: shifted}
	u := &api.WindowUse{Worker: "worker", Steps: uint32(steps)}
	for key := range uses {
		w.Keys = append(w.Keys, key)
	}
	slices.Sort(w.Keys)
	for i, key := range w.Keys {
		u.Keys, u.Pulls, u.Pushes = append(u.Keys, uint32(i)), append(u.Pulls, uses[key]), append(u.Pushes, uses[key])
	}
	u.Pulled, u.Pushed = u.Keys, u.Keys
	w.Uses = []*api.WindowUse{u}
	table, _ := h.f.run.Table()
	return &api.HostReport{Host: fmt.Sprintf("h%d", h.number), Jobs: []*api.JobReport{{
		Job: testJob, NodeTable: table, Servers: shiftHosts, Workers: shiftHosts, Window: w, LastUnixNanos: now,
		Nodes: []*api.Node{{Role: "server", Rank: int32(h.number), Local: true}},
		Steps: []*api.Steps{{Worker: "worker", Steps: uint64(time.Since(h.f.began).Seconds() * shiftSteps)}},
	}}}
}

// live reports, follows and moves until ctx ends.
func (h *shiftHost) live(ctx context.Context, all *sync.WaitGroup) {
	all.Go(func() {
		time.Sleep(time.Duration(h.random.IntN(100)) * time.Millisecond)
		for tick := time.Tick(100 * time.Millisecond); ctx.Err() == nil; <-tick {
			if span, shifted, due := h.due(); due {
				h.f.planner.Take(h.report(span, shifted))
			}
		}
	})
	all.Go(func() {
		_ = h.f.service.Watch(&api.WatchRequest{Host: fmt.Sprintf("h%d", h.number), Runs: []*api.Running{{
			Job: testJob, Run: string(h.f.run), Servers: shiftHosts, Used: true, Routed: true, Moves: []int32{int32(h.number)},
		}}}, &shiftStream{ctx: ctx, moves: h.moves}) // it ends with ctx
	})
	for range shiftMoving {
		all.Go(func() {
			for {
				select {
				case b := <-h.moves:
					time.Sleep(shiftMove)
					h.move(ctx, b)
				case <-ctx.Done():
					return
				}
			}
		})
	}
}

func (h *shiftHost) move(ctx context.Context, b *api.MoveBatch) {
	f, host := h.f, fmt.Sprintf("h%d", h.number)
	report := &api.MoveReport{Host: host, Job: testJob, Run: string(f.run), Batch: b.GetBatch(), Done: true, MovedKeys: uint64(len(b.GetFirst()))}
	if _, err := f.service.Record(ctx, &api.RecordRequest{Job: testJob, Run: string(f.run), Host: host, Batch: b.GetBatch(), From: b.GetFrom(), To: b.GetTo(), First: b.GetFirst(), Last: b.GetLast()}); err != nil {
		report.MovedKeys, report.Refused = 0, []*api.Refusal{{Reason: "elsewhere", Message: err.Error(), Keys: uint64(len(b.GetFirst()))}}
	} else {
		f.mu.Lock()
		for _, key := range b.GetFirst() {
			if to, ok := f.wanted[key]; ok {
				if f.moved[key]++; to == b.GetTo() && f.moved[key] == 1 {
					f.when = append(f.when, time.Now())
				}
			}
		}
		f.mu.Unlock()
	}
	f.service.Settle(ctx, report)
}

// A shiftStream is a proxy's end of Watch that takes moves alone.
type shiftStream struct {
	grpc.ServerStreamingServer[api.PlanEvent]
	ctx   context.Context
	moves chan *api.MoveBatch
}

func (s *shiftStream) Context() context.Context { return s.ctx }

func (s *shiftStream) SendMsg(m any) error {
	if b := m.(interface{ GetMove() *api.MoveBatch }).GetMove(); b != nil {
		s.moves <- b
	}
	return nil
}

// Keys that workers turn to are with them soon, whatever else is being moved: nine tenths
// within 5 s, and each moves once. The time is that of a bubble, in which nothing takes
// time but what waits for something; proxies take theirs for each batch, and one host
// tells late.
func TestShiftsArePlannedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, hosts := newShiftFleet(t)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { _ = f.planner.Run(ctx) })
		for _, h := range hosts {
			h.live(ctx, &all)
		}
		random := rand.New(rand.NewPCG(1, 1))
		const keys = shiftTurned * shiftHot
		for n := range 8 {
			time.Sleep(30*time.Second + time.Duration(random.IntN(5000))*time.Millisecond) // at any time of the planner's round
			f.shift(hosts)
			at := time.Now()
			time.Sleep(20 * time.Second)
			f.mu.Lock()
			when := slices.Clone(f.when)
			again := 0
			for _, times := range f.moved {
				again += times - 1
			}
			f.mu.Unlock()
			if len(when) < keys*9/10 {
				t.Errorf("shift %d: %d of %d keys are where they are used", n, len(when), keys)
				continue
			}
			half, most := when[keys/2].Sub(at), when[keys*9/10-1].Sub(at)
			t.Logf("shift %d: the first after %v, half after %v, nine tenths after %v, %d moved again", n, when[0].Sub(at), half, most, again)
			if most > 5*time.Second {
				t.Errorf("shift %d: nine tenths of the keys are where they are used after %v", n, most)
			}
			if again > keys/100 {
				t.Errorf("shift %d: %d of %d keys moved again", n, again, keys)
			}
		}
		cancel()
		all.Wait()
	})
}
