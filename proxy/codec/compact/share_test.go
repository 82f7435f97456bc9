package compact

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/relay"
)

// sharingHosts are the proxy of a host with servers and that of one with workers.
type sharingHosts struct {
	t               testing.TB
	servers, worker *Codec
	memory          *relay.Memory
	links           uint64
	serves          sync.WaitGroup
}

var (
	atServers = relay.Instance{1}
	atWorkers = relay.Instance{2}
)

func newSharingHosts(t testing.TB, servers, workers Limits) *sharingHosts {
	return &sharingHosts{t: t, servers: New(servers), worker: New(workers), memory: relay.NewMemory(1 << 30)}
}

// lane is what a link's Lane does.
func (h *sharingHosts) lane(_ context.Context, id []byte) (net.Conn, error) {
	here, there := net.Pipe()
	h.serves.Go(func() {
		if err := h.worker.ServeLane(context.Background(), atServers, id, there, h.memory); err != nil {
			h.t.Error(err)
		}
	})
	return here, nil
}

// toWorker makes the link of a server of a job to a worker, and the worker's to the
// server.
func (h *sharingHosts) toWorker(job string) *direction {
	h.t.Helper()
	_, answers := h.bothWays(job)
	return answers
}

// bothWays is toWorker that returns both.
func (h *sharingHosts) bothWays(job string) (requests, answers *direction) {
	h.t.Helper()
	h.links++
	client := netip.MustParseAddrPort("10.0.0.1:40000")
	worker := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), uint16(5000+h.links))
	server := netip.MustParseAddrPort("10.0.0.1:7000")
	there := relay.Link{ID: h.links, Dialer: atServers, Acceptor: atWorkers, Client: client, Destination: worker, HeadLimit: relay.HeadLimit, Memory: h.memory}
	back := relay.Link{ID: h.links, Dialer: atWorkers, Acceptor: atServers, Client: worker, Destination: server, HeadLimit: relay.HeadLimit, Memory: h.memory}
	_, in := h.open(h.worker, there, h.servers.Offer())
	there.Dialed, there.Scope, there.Lane = true, job, h.lane
	out, back1 := h.open(h.servers, there, h.worker.Offer())
	s1, r1 := h.open(h.servers, back, h.worker.Offer())
	back.Dialed = true
	s2, r2 := h.open(h.worker, back, h.servers.Offer())
	s3, _ := h.open(h.worker, relay.Link{ID: 1 << 40, Dialer: atWorkers, Acceptor: atServers}, h.servers.Offer()) // keeps the peer
	h.t.Cleanup(func() {
		out.Close()
		back1.Close()
		in.Close()
		for _, c := range []interface{ Close() }{s1, r1, s2, r2, s3} {
			c.Close()
		}
	})
	return &direction{sender: s2.(*Sender), receiver: r1.(*Receiver)}, &direction{sender: out.(*Sender), receiver: in.(*Receiver)}
}

func (h *sharingHosts) open(c *Codec, l relay.Link, offered []byte) (relay.Sender, relay.Receiver) {
	h.t.Helper()
	s, r, err := c.Open(l, offered)
	if err != nil {
		h.t.Fatal(err)
	}
	return s, r
}

// end waits for the lanes' ends at the test's end, after the links that are made
// from now on.
func (h *sharingHosts) end() { h.t.Cleanup(h.serves.Wait) }

// answers are a server's to the pulls of one step, of so many bytes of random values.
func answers(rng *rand.Rand, keys, size int) (all [][][]byte) {
	for k := range keys {
		all = append(all, data(pslite.DMLC, int32(k), false, false, true, []uint64{uint64(k)}, randomBytes(rng, size), nil))
	}
	return all
}

// Four workers of a host are answered with the same values, which cross once, and with
// others, which each gets.
func TestValuesCrossOnceToAHost(t *testing.T) {
	const keys, size, steps = 5, 50_000, 4
	h := newSharingHosts(t, DefaultLimits, DefaultLimits)
	h.end()
	var all []*direction
	for range 4 {
		all = append(all, h.toWorker("job"))
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range steps {
		for _, frames := range answers(rng, keys, size) {
			for _, d := range all {
				d.pass(t, frames)
			}
		}
		for i, d := range all { // keys of its own
			d.pass(t, data(pslite.DMLC, 9, false, false, true, []uint64{uint64(100 + i)}, randomBytes(rng, size), nil))
		}
	}
	c := h.servers.Shared()
	if want := uint64(3 * steps * keys * size); c.SparedBytes != want {
		t.Errorf("%d bytes of %d were spared: %+v", c.SparedBytes, want, c)
	}
	onLinks := 0
	for _, d := range all {
		onLinks += d.encoded
	}
	if most := 4*steps*size + 4*steps*(keys+1)*64; onLinks > most || uint64(onLinks)+c.SentBytes < steps*(keys+4)*size {
		t.Errorf("%d bytes on the links, %d on the lane", onLinks, c.SentBytes)
	}
	if w := h.worker.Shared(); w.ReceivedBytes != c.SentBytes || w.HeldBytes == 0 {
		t.Errorf("received %+v of %+v", w, c)
	}
}

// What is packed well goes so over the lane, too, or over the link where it is little.
func TestPackedValuesAreShared(t *testing.T) {
	h := newSharingHosts(t, DefaultLimits, DefaultLimits)
	h.end()
	a, b := h.toWorker("job"), h.toWorker("job")
	few := make([]byte, 400_000) // words of which many are equal
	rng := rand.New(rand.NewPCG(2, 2))
	for i := 0; i < len(few); i += 4 {
		few[i] = byte(rng.IntN(200))
	}
	zeros := make([]byte, 400_000)
	sparse := make([]byte, 4_000_000)
	for range 40_000 {
		copy(sparse[rng.IntN(len(sparse)/4)*4:], randomBytes(rng, 4))
	}
	for k, values := range [][]byte{few, sparse, zeros} {
		frames := data(pslite.DMLC, int32(k), false, false, true, []uint64{uint64(k)}, values, nil)
		a.pass(t, frames)
		b.pass(t, frames)
	}
	c := h.servers.Shared()
	if c.Sent != 2 || c.Referred != 2 || c.SentBytes > 1_000_000 {
		t.Errorf("%+v", c)
	}
	if a.encoded > 1000 || b.encoded > 1000 {
		t.Errorf("%d and %d bytes on the links", a.encoded, b.encoded)
	}
}

// crowd is workers of a host that pull other keys in each step, of which they have many in common.
type crowd struct {
	requests, answers []*direction
	rng               *rand.Rand
	versions          []byte // of the keys' values
	step              int32
}

const crowdWidth = 4

func newCrowd(h *sharingHosts, workers, keys int) *crowd {
	c := &crowd{rng: rand.New(rand.NewPCG(7, 7)), versions: make([]byte, keys)}
	for range workers {
		r, a := h.bothWays("job")
		c.requests, c.answers = append(c.requests, r), append(c.answers, a)
	}
	return c
}

// pull has all workers pull half of the keys, of which the server has changed all before, and
// returns how many different ones that were. Each has another timestamp.
func (c *crowd) pull(t *testing.T) (distinct int) {
	t.Helper()
	for k := range c.versions {
		c.versions[k]++
	}
	used := map[uint64]bool{}
	for i := range c.requests {
		var keys []uint64
		var values []byte
		for k, version := range c.versions {
			if c.rng.IntN(2) == 0 {
				continue
			}
			used[uint64(k)<<32] = true
			keys = append(keys, uint64(k)<<32)
			values = append(values, byte(k), byte(k>>8), version, version*31)
		}
		c.step++
		c.requests[i].pass(t, data(pslite.DMLC, c.step, true, false, true, keys, nil, nil))
		c.answers[i].pass(t, data(pslite.DMLC, c.step, false, false, true, keys, values, nil))
	}
	return len(used)
}

// Workers that never pull the same keys are sent the values that they have in common once.
func TestKeysInCommonCrossOnce(t *testing.T) {
	h := newSharingHosts(t, DefaultLimits, DefaultLimits)
	h.end()
	const workers, keys, steps = 4, 6000, 12
	c := newCrowd(h, workers, keys)
	distinct := 0
	for range steps {
		distinct += c.pull(t)
	}
	counts := h.servers.Shared()
	if counts.ByKey != workers*steps {
		t.Errorf("%+v", counts)
	}
	onLinks := 0
	for i := range c.answers {
		onLinks += c.answers[i].encoded
		if n := len(c.requests[i].sender.peer.asked); n > 0 {
			t.Errorf("%d requests are kept after their answers", n)
		}
	}
	// And a bit for each key, and heads.
	values := distinct * crowdWidth
	if most := values*105/100 + workers*steps*(keys/2/8+64); onLinks+int(counts.SentBytes) > most {
		t.Errorf("%d bytes on the links, %d on the lane, want at most %d", onLinks, counts.SentBytes, most)
	}
}

// Proxies that know nothing of keys in common are sent whole answers.
func TestOldProxiesShareWholeAnswers(t *testing.T) {
	old := DefaultLimits
	old.SharedForms = 0
	for name, h := range map[string]*sharingHosts{"at the workers": newSharingHosts(t, DefaultLimits, old), "at the servers": newSharingHosts(t, old, DefaultLimits)} {
		t.Run(name, func(t *testing.T) {
			h.t = t
			h.end()
			c := newCrowd(h, 3, 4000)
			for range 5 {
				c.pull(t)
			}
			if counts := h.servers.Shared(); counts.ByKey > 0 || counts.Sent == 0 {
				t.Errorf("%+v", counts)
			}
		})
	}
}

// Equal values of two jobs, or of servers of whom nobody knows the job, are not shared
// among them.
func TestJobsAreApart(t *testing.T) {
	h := newSharingHosts(t, DefaultLimits, DefaultLimits)
	h.end()
	rng := rand.New(rand.NewPCG(3, 3))
	all := answers(rng, 3, 20_000)
	for _, job := range []string{"one", "two", "", ""} {
		d := h.toWorker(job)
		for _, frames := range all {
			d.pass(t, frames)
		}
	}
	if c := h.servers.Shared(); c.Referred > 0 {
		t.Errorf("%+v", c)
	}
}

// A proxy that does not know of it, or was told not to, gets all values.
func TestOldProxiesGetAllValues(t *testing.T) {
	old := DefaultLimits
	old.SharedBytes = 0
	for name, h := range map[string]*sharingHosts{"at the workers": newSharingHosts(t, DefaultLimits, old), "at the servers": newSharingHosts(t, old, DefaultLimits)} {
		t.Run(name, func(t *testing.T) {
			h.t = t
			h.end()
			a, b := h.toWorker("job"), h.toWorker("job")
			for _, frames := range answers(rand.New(rand.NewPCG(4, 4)), 10, 20_000) {
				a.pass(t, frames)
				b.pass(t, frames)
			}
			if c := h.servers.Shared(); c.Sent+c.Referred > 0 {
				t.Errorf("%+v", c)
			}
			if a.encoded < 200_000 || b.encoded < 200_000 {
				t.Errorf("%d and %d bytes on the links", a.encoded, b.encoded)
			}
		})
	}
}

// A single worker of a host has nobody to share with: no lane is made for it.
func TestOneWorkerIsLeftAlone(t *testing.T) {
	h := newSharingHosts(t, DefaultLimits, DefaultLimits)
	h.end()
	a := h.toWorker("job")
	for _, frames := range answers(rand.New(rand.NewPCG(5, 5)), 10, 20_000) {
		a.pass(t, frames)
	}
	if c := h.servers.Shared(); c.Sent > 0 || len(c.Plain) > 0 {
		t.Errorf("%+v", c)
	}
}

// A reference without a group, to nothing, or on a link that shares nothing ends the
// link; it is not waited for.
func TestReferencesThatAreNone(t *testing.T) {
	h := newSharingHosts(t, DefaultLimits, DefaultLimits)
	h.end()
	d := h.toWorker("job")
	meta := data(pslite.DMLC, 1, false, false, true, []uint64{1}, nil, nil)[0]
	for name, tail := range map[string][]byte{
		"no name": {}, "half a name": make([]byte, 8), "a name that nobody has": make([]byte, 17), "no number": make([]byte, 16),
	} {
		var m metas
		head := m.append([]byte{hasValues | sharedValues}, meta)
		head = append(d.sender.keys.Append(head, pslite.AppendKeys(nil, []uint64{1})), tail...)
		for on, r := range map[string]*Receiver{"a link that shares": d.receiver, "one that does not": NewPeer(DefaultLimits).newReceiver(1, false, new(relay.Loan))} {
			if _, _, err := r.Decode(head); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s, on %s: %v", name, on, err)
			}
		}
	}
}
