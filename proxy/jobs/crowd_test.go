package jobs

import (
	"errors"
	"io"
	"slices"
	"sync"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// pushOf is a push of one key, as it comes from a process.
func pushOf(timestamp int32, key uint64, values int) []byte {
	m := messageOf(timestamp, true, []uint64{key}, make([]float32, values))
	return appendMessage(nil, append([][]byte{m.Meta.Append(nil, pslite.DMLC)}, m.Data...))
}

// pushes writes pushes of a key with timestamps from 0 on.
func (l *wholeLine) pushes(t *testing.T, wg *sync.WaitGroup, key uint64, values, n int) {
	wg.Go(func() {
		for i := range n {
			if _, err := l.process.Write(pushOf(int32(i), key, values)); err != nil {
				t.Error(err)
				return
			}
		}
	})
}

// readTimestamps are those of the messages of three frames that were read.
func (l *wholeLine) readTimestamps(t *testing.T) (all []int32) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	frames, err := cutMessage(l.got)
	if err != nil || len(frames)%3 != 0 {
		t.Fatalf("%d frames were read, %v", len(frames), err)
	}
	for i := 0; i < len(frames); i += 3 {
		var m pslite.Meta
		require.NoError(t, m.Decode(frames[i], pslite.DMLC))
		all = append(all, m.Timestamp)
	}
	return all
}

// Requests for keys that move wait up to a bound; the process's others stay unread until the keys
// have moved, and all come in order.
func TestRequestsForMovingKeysHoldUp(t *testing.T) {
	for _, c := range []struct {
		name         string
		values, full int
	}{{"by messages", 1, mostQueued}, {"by bytes", mib / 4, mostQueuedBytes / mib}} {
		t.Run(c.name, func(t *testing.T) {
			x := oneJob(t, Options{})
			x.joinScopes([]Scope{{}})
			batch := route.Batch{Mover: "10.0.0.2", Number: 1}
			x.locked(func() error {
				x.router.Hold(batch, []plan.Keys{plan.One(7)})
				return nil
			})
			var wg, writing sync.WaitGroup
			a := workerLine(t, x, 0)
			a.reading(t, &wg)
			n := c.full * 5 / 4
			a.pushes(t, &writing, 7, c.values, n)
			awaitState(t, x, "held up", func() bool { return x.heldUp[a.requests] })
			if got := x.state().Waiting; got != c.full {
				t.Errorf("%d requests wait, the bound is %d", got, c.full)
			}
			x.locked(func() error {
				x.router.Release(batch, route.Unchanged)
				return nil
			})
			writing.Wait()
			awaitState(t, x, "all on their way", func() bool { return x.router.Counts().Plain == uint64(n) })
			a.process.Close()
			wg.Wait()
			if got := a.readTimestamps(t); !slices.Equal(got, upTo(0, int32(n))) {
				t.Errorf("%d requests come: %v", len(got), got)
			}
		})
	}
}

// Parts of requests wait for a connection up to a bound, and none is dropped: the process is held
// up until there is one.
func TestPartsWithoutAConnectionHoldUp(t *testing.T) {
	x := oneJob(t, Options{})
	x.joinScopes([]Scope{{}})
	x.router.Table().Set([]plan.Range{{Keys: plan.One(7), Owner: 1}})
	var wg, writing sync.WaitGroup
	a := workerLine(t, x, 0)
	a.reading(t, &wg)
	const n = 6 * mostQueued
	a.pushes(t, &writing, 7, 1, n)
	awaitState(t, x, "held up", func() bool { return x.heldUp[a.requests] })
	if got := len(x.pendingUp[pair{pslite.WorkerID(0), 1}]); got != mostQueued {
		t.Errorf("%d parts wait, the bound is %d", got, mostQueued)
	}
	b := workerLine(t, x, 1)
	b.reading(t, &wg)
	writing.Wait()
	awaitState(t, x, "all on their way", func() bool { return x.router.Counts().Parts == n })
	a.process.Close()
	b.process.Close()
	wg.Wait()
	if got := b.readTimestamps(t); len(got) != n || !slices.IsSorted(got) {
		t.Errorf("%d parts come, want %d, in order", len(got), n)
	}
	if s := x.state(); s.Lost != 0 {
		t.Errorf("%d messages are lost", s.Lost)
	}
}

// A worker that does not read its answers is not asked for more: its requests for displaced keys
// wait until it does.
func TestUnreadAnswersHoldUp(t *testing.T) {
	x := oneJob(t, Options{})
	x.router.Table().Set([]plan.Range{{Keys: plan.One(7), Owner: 1}})
	c := answersTo(t, x) // nobody writes for now
	message := make([]byte, 1<<10)
	x.mu.Lock()
	for range mostQueued {
		x.enqueueOut(&route.Out{Worker: c.peer, Server: 0, ToWorker: true, Frames: [][]byte{message}})
	}
	x.mu.Unlock()
	worker := &requests{jobs: x.jobs, job: x, sender: pslite.WorkerID(0), peer: pslite.ServerID(0)}
	ask := func() error {
		passes, err := x.request(worker, messageOf(1, true, []uint64{7}, []float32{1}), pslite.DMLC)
		if passes {
			t.Error("a request for a displaced key passes")
		}
		return err
	}
	if err := ask(); !errors.Is(err, errLater) {
		t.Errorf("with %d answers unread: %v", mostQueued, err)
	}
	if passes, err := x.request(worker, messageOf(2, true, []uint64{8}, []float32{1}), pslite.DMLC); !passes || err != nil {
		t.Errorf("a request that needs no answer of the router: %v, %v", passes, err)
	}
	require.Value(io.ReadFull(carry(t, c, true).process, make([]byte, mostQueued*len(appendMessage(nil, [][]byte{message})))))(t)
	awaitState(t, x, "woken", func() bool { return len(x.heldUp) == 0 })
	if err := ask(); err != nil {
		t.Errorf("when they are read: %v", err)
	}
}

// Of a worker's requests only so many are split and not answered; further ones wait until half of
// them are.
func TestSplitRequestsInFlightHoldUp(t *testing.T) {
	x := oneJob(t, Options{})
	x.router.Table().Set([]plan.Range{{Keys: plan.One(7), Owner: 1}})
	worker := &requests{jobs: x.jobs, job: x, sender: pslite.WorkerID(0), peer: pslite.ServerID(0)}
	ask := func(timestamp int32) error {
		t.Helper()
		m := messageOf(timestamp, true, []uint64{7}, []float32{1})
		passes, err := x.request(worker, m, pslite.DMLC)
		if passes {
			t.Fatal("a request for a displaced key passes")
		}
		if err == nil {
			err = x.takeRequest(worker, m, pslite.DMLC)
		}
		return err
	}
	parts := pair{pslite.WorkerID(0), 1}
	var sent []int32 // the parts' timestamps
	for i := range int32(route.MaxSplits) {
		if err := ask(i); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		sent = append(sent, onlyMessage(t, x.pendingUp[parts]).Meta.Timestamp)
		delete(x.pendingUp, parts)
	}
	if err := ask(route.MaxSplits); !errors.Is(err, errLater) || !x.heldUp[worker] {
		t.Fatalf("one more: %v", err)
	}
	server := &answers{jobs: x.jobs, job: x, sender: pslite.ServerID(1), peer: pslite.WorkerID(0)}
	for i, own := range sent[:route.MaxSplits/2+1] {
		if len(x.heldUp) == 0 {
			t.Fatalf("woken after %d answers", i)
		}
		m := messageOf(own, true, nil, nil)
		m.Meta.Request, m.Data = false, nil
		require.NoError(t, x.takeAnswer(server, m, pslite.DMLC))
		clear(x.pendingDown)
	}
	if len(x.heldUp) > 0 {
		t.Error("it still waits when half are answered")
	}
	if err := ask(route.MaxSplits); err != nil {
		t.Errorf("then: %v", err)
	}
}
