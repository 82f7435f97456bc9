package plans

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/require"
)

// shaky is a store whose writes end in the middle, now and then.
type shaky struct {
	store.Memory
	fails func(entries int) int // how many entries are written, -1 for all
}

func (s *shaky) Write(ctx context.Context, entries []store.Entry) error {
	n := s.fails(len(entries))
	if n < 0 {
		return s.Memory.Write(ctx, entries)
	}
	if err := s.Memory.Write(ctx, entries[:n]); err != nil {
		return err
	}
	return fmt.Errorf("%w: out of order", store.ErrUnavailable)
}

// Acknowledged records survive any restart, and others only where the caller was
// told that the outcome is unknown. The log is short, so snapshots come often.
func TestOwnersSurvive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		const servers, keys = 3, 12
		failing := false
		disk := &shaky{fails: func(n int) int {
			if !failing {
				return -1
			}
			return rapid.IntRange(0, n-1).Draw(t, "written")
		}}
		open := func() *Service {
			s := require.Value(New(ctx, disk, Options{}))(t)
			s.logSlack = 4
			return s
		}
		s := open()
		require.Value(s.Propose(ctx, Proposal{Job: testJob, Servers: servers, Targets: []plan.Range{target(0, 0, 1)}}))(t)
		var owner [keys]int32
		for range rapid.IntRange(1, 40).Draw(t, "records") {
			failing = rapid.IntRange(0, 2).Draw(t, "fails") == 0
			var requests []*api.RecordRequest
			var want []codes.Code
			var taken [keys]bool // a key's next move begins when its last is acknowledged
			for range rapid.IntRange(1, 3).Draw(t, "together") {
				first := rapid.IntRange(0, keys-1).Draw(t, "first")
				last := rapid.IntRange(first, keys-1).Draw(t, "last")
				from, to := rapid.Int32Range(0, servers-1).Draw(t, "from"), rapid.Int32Range(0, servers-1).Draw(t, "to")
				if slices.Contains(taken[first:last+1], true) {
					continue
				}
				for i := first; i <= last; i++ {
					taken[i] = true
				}
				code := codes.OK
				for _, o := range owner[first : last+1] {
					if o != from && o != to {
						code = codes.FailedPrecondition
					}
				}
				for i := first; code == codes.OK && i <= last; i++ {
					owner[i] = to
				}
				requests = append(requests, &api.RecordRequest{Job: testJob, From: from, To: to, First: []uint64{uint64(first)}, Last: []uint64{uint64(last)}})
				want = append(want, code)
			}
			got := recordTogether(t, s, requests)
			failing = false
			if rapid.IntRange(0, 5).Draw(t, "restart") == 0 {
				s = open()
			}
			for i, r := range requests {
				if got[i] == codes.Unavailable { // tried again until it is known
					_, err := s.Record(ctx, r)
					got[i] = status.Code(err)
				}
				if got[i] != want[i] {
					t.Fatalf("%v gives %v, want %v", r, got[i], want[i])
				}
			}
			for _, s := range []*Service{s, open()} {
				s.View(testJob, func(w Where) {
					o := w.Owners

					for r := range o.Resolved(plan.Keys{First: 0, Last: keys - 1}, servers) {
						for k := r.First; k <= r.Last; k++ {
							if owner[k] != r.Owner {
								t.Fatalf("key %d is with %d, want %d", k, r.Owner, owner[k])
							}
						}
					}
				})
			}
		}
	})
}

// recordTogether has requests written at a time, and returns what became of
// each.
func recordTogether(t *rapid.T, s *Service, requests []*api.RecordRequest) []codes.Code {
	j := require.Value(s.find(testJob))(t)
	var commits []*commit
	for _, r := range requests {
		keys := require.Value(keysOf(r.GetFirst(), r.GetLast()))(t)
		commits = append(commits, &commit{request: r, keys: keys})
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.queue = commits
	j.commitQueue(context.Background())
	var got []codes.Code
	for _, c := range commits {
		got = append(got, status.Code(c.err))
	}
	return got
}

// What an interrupted write left in the log does not come back.
func TestNothingComesBack(t *testing.T) {
	disk := &shaky{fails: func(int) int { return -1 }}
	s := newService(t, disk, Options{})
	propose(t, s, 3, target(0, 0, 1))
	record := func(key uint64, from, to int32) error {
		_, err := s.Record(t.Context(), &api.RecordRequest{Job: testJob, From: from, To: to, First: []uint64{key}})
		return err
	}
	j := require.Value(s.find(testJob))(t)
	for key := range uint64(3) {
		r := &api.RecordRequest{Job: testJob, From: 0, To: 1, First: []uint64{key}}
		j.queue = append(j.queue, &commit{request: r, keys: []plan.Keys{plan.One(key)}})
	}
	disk.fails = func(n int) int { return n - 1 } // all three are in the log, and more was to come
	j.mu.Lock()
	j.queue = append(j.queue, &commit{request: &api.RecordRequest{Job: testJob, To: 1}, keys: []plan.Keys{plan.One(9)}})
	j.commitQueue(t.Context())
	j.mu.Unlock()
	disk.fails = func(int) int { return -1 }
	require.NoError(t, record(2, 0, 1))
	require.NoError(t, record(2, 1, 2))
	again := newService(t, disk, Options{})
	if got := owners(again); len(got) != 1 || got[0] != target(2, 2, 2) {
		t.Errorf("displaced is %v, want key 2 with server 2", got)
	}
}

// Many record at a time; each key ends with the owner of the last record.
func TestRecordsTogether(t *testing.T) {
	disk := &store.Memory{}
	s := newService(t, disk, Options{})
	propose(t, s, 8, target(0, 0, 1))
	const proxies, keys = 8, 500
	var group sync.WaitGroup
	for p := range proxies {
		group.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(p)))
			at := make([]int32, keys)
			for range 1000 {
				k := r.IntN(keys)
				to := int32(r.IntN(8))
				_, err := s.Record(t.Context(), &api.RecordRequest{Job: testJob, From: at[k], To: to, First: []uint64{uint64(p*keys + k)}})
				if err != nil {
					t.Error(err)
				}
				at[k] = to
			}
			for k, want := range at {
				s.View(testJob, func(w Where) {
					o := w.Owners

					if got := max(o.Owner(uint64(p*keys+k)), 0); got != want {
						t.Errorf("proxy %d, key %d: with %d, want %d", p, k, got, want)
					}
				})
			}
		})
	}
	group.Wait()
	again := newService(t, disk, Options{})
	if a, b := fmt.Sprint(owners(s)), fmt.Sprint(owners(again)); a != b {
		t.Errorf("after a restart %.200s..., before %.200s...", b, a)
	}
}

func TestDamagedStore(t *testing.T) {
	disk := &store.Memory{}
	s := newService(t, disk, Options{})
	propose(t, s, 2, target(1, 1, 1))
	for _, k := range []uint64{1, 2, 3} {
		require.Value(s.Record(t.Context(), &api.RecordRequest{Job: testJob, To: 1, First: []uint64{k}}))(t)
	}
	j := require.Value(s.find(testJob))(t)
	require.NoError(t, disk.Write(t.Context(), []store.Entry{{Name: j.logName(2)}}))
	if _, err := New(t.Context(), disk, Options{}); err == nil {
		t.Error("a change that is missing is not noticed")
	}
}

// Names that come in order are cut as each is alone.
func TestNamesAreCutAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.SampledFrom([]string{"job", "run", "head", "snap", "log", "epoch", "move", "a", "01", "0123456789abcdef0123456789abcdef", ""})
		var c nameCutter
		for _, name := range rapid.SliceOf(rapid.Custom(func(t *rapid.T) string {
			return strings.Join(append([]string{"job"}, rapid.SliceOfN(part, 1, 7).Draw(t, "parts")...), "/")
		})).Draw(t, "names") {
			for _, last := range []string{"", "/1", "/2", "/head"} {
				k, rest, ok := c.cut(name + last)
				if wantK, wantRest, want := cutName(name + last); k != wantK || rest != wantRest || ok != want {
					t.Fatalf("%q is cut into %v, %q, %v after others, alone into %v, %q, %v", name+last, k, rest, ok, wantK, wantRest, want)
				}
			}
		}
	})
}
