package values

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

func normal(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

// Initial values, which a worker pushes before it pulls, arrive whole and at once,
// as those of MXNet's and dist-lr's workers do; gradients wait from the next push
// on, and nothing is lost.
func TestInitialValuesArrive(t *testing.T) {
	for name, rule := range map[string]Rule{
		"threshold": {Threshold: 0.99},
		"slim":      {Slim: &Slim{Alpha: 0.3, Epsilon: 0.1, Rounds: 4}},
		"quantize":  {Quantize: 4},
		"wire":      {Wire: "bf16"},
		"both":      {Threshold: 0.99, Wire: "bf16"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnds(t, rule)
			w := e.dial(t, e.worker, e.server, "ps9")
			defer w.close()
			r := rand.New(rand.NewPCG(1, 1))
			keys := []uint64{0, 1, 7}
			lens := []int32{2000, 5000, 600}
			for i, k := range keys {
				q := request{timestamp: int32(i), push: true, keys: []uint64{k}, vals: normal(r, int(lens[i]))}
				if got := floats(w.carry(t, q.frames())[2]); !slices.Equal(got, q.vals) {
					t.Fatalf("of key %d's %d initial values others arrived", k, lens[i])
				}
			}
			again := request{timestamp: 5, push: true, keys: []uint64{1}, vals: normal(r, 5000)}
			if got := floats(w.carry(t, again.frames())[2]); !slices.Equal(got, again.vals) {
				t.Fatal("a key was pushed twice and never pulled, and not all arrived")
			}
			if e.worker.Counts().Reasons[ReasonUnpulled] != 4 {
				t.Errorf("%v, want 4 unpulled", e.worker.Counts().Reasons)
			}
			w.carry(t, request{timestamp: 6, pull: true, keys: keys}.frames())
			same, sent := 0, 0
			for i, k := range keys {
				q := request{timestamp: int32(10 + i), push: true, keys: []uint64{k}, vals: normal(r, int(lens[i]))}
				for j, v := range floats(w.carry(t, q.frames())[2]) {
					if v == q.vals[j] {
						same++
					}
					if v != 0 {
						sent++
					}
				}
			}
			if sent == 0 || same > 7600/2 {
				t.Errorf("of 7600 values of gradients %d arrived, %d as they were", sent, same)
			}
		})
	}
}

// Keys of few values: what is pushed of each goes whole until the key was pulled,
// whatever else is in the message, and the worker's first push goes whole anyway.
func TestEachKeysFirstPush(t *testing.T) {
	e := newEnds(t, Rule{Threshold: 0.9})
	w := e.dial(t, e.worker, e.server, "ps9")
	defer w.close()
	r := rand.New(rand.NewPCG(2, 2))
	pushed, got := sums{}, sums{}
	pulled := map[uint64]bool{}
	held := 0
	for k := range uint64(900) {
		if k%2 == 0 {
			pulled[k] = true
			w.carry(t, request{timestamp: 5000 + int32(k), pull: true, keys: []uint64{k}}.frames())
		}
	}
	for step := range int32(200) {
		q := request{timestamp: 2 * step, push: true, keys: randomKeys(r, 60, 900)}
		for range q.keys {
			q.vals = append(q.vals, float32(r.IntN(9)-4), float32(r.IntN(9)-4))
		}
		out := floats(w.carry(t, q.frames())[2])
		for i, k := range q.keys {
			whole := out[2*i] == q.vals[2*i] && out[2*i+1] == q.vals[2*i+1]
			switch {
			case !whole && !pulled[k]:
				t.Fatalf("step %d: key %d was not pulled, and did not go whole", step, k)
			case !whole && step == 0:
				t.Fatalf("key %d of the first push did not go whole", k)
			case !whole:
				held++
			}
		}
		pushed.add(q.keys, q.vals, nil)
		got.add(q.keys, out, nil)
		if step%3 == 0 {
			keys := randomKeys(r, 200, 900)
			w.carry(t, request{timestamp: 2*step + 1, pull: true, keys: keys}.frames())
			for _, k := range keys {
				pulled[k] = true
			}
		}
	}
	if held == 0 {
		t.Error("nothing ever waited")
	}
	require.NoError(t, e.worker.SetRules(nil))
	for k, v := range pushed {
		q := request{timestamp: 10_000 + int32(k), push: true, keys: []uint64{k}, vals: make([]float32, len(v))}
		got.add(q.keys, floats(w.carry(t, q.frames())[2]), nil)
	}
	if left := pushed.difference(got) + got.difference(pushed); left != 0 {
		t.Errorf("sums are off by %v", left)
	}
}

// A push of the keys that were just pulled finds their places as the pull has left them,
// whatever came in between: other pulls, new keys, a change of the rule.
func TestPushesOfPulledKeys(t *testing.T) {
	e := newEnds(t, Rule{Threshold: 0.9})
	w := e.dial(t, e.worker, e.server, "ps9")
	r := rand.New(rand.NewPCG(8, 8))
	pushed, got := sums{}, sums{}
	var last []uint64
	stamp, held, hits := int32(0), 0, 0
	st := func() *stream {
		for _, st := range w.sender.(*Sender).streams {
			return st
		}
		return nil
	}
	for step := range 600 {
		keys := randomKeys(r, 1+r.IntN(60), 300+uint64(step))
		if r.IntN(3) == 0 && last != nil {
			keys = last
		}
		last = keys
		for _, pull := range [][]uint64{keys, randomKeys(r, 30, 900), randomKeys(r, 30, 900)}[:r.IntN(4)] {
			stamp++
			w.carry(t, request{timestamp: stamp, pull: true, keys: pull}.frames())
		}
		q := request{push: true, keys: keys}
		for range q.keys {
			q.vals = append(q.vals, float32(r.IntN(9)-4))
		}
		if s := st(); s != nil {
			for i := range s.located {
				if l := &s.located[i]; l.layer != nil && bytes.Equal(l.keys, pslite.AppendKeys(nil, keys)) {
					hits++
				}
			}
		}
		stamp++
		q.timestamp = stamp
		out := floats(w.carry(t, q.frames())[2])
		if !slices.Equal(out, q.vals) {
			held++
		}
		pushed.add(q.keys, q.vals, nil)
		got.add(q.keys, out, nil)
		if step%100 == 99 {
			rules := []Rule{{Threshold: 0.9}, {Threshold: 0.8}, {Keys: Range{Last: 500}, Threshold: 0.9}, {}}
			require.NoError(t, e.worker.SetRules([]Rule{rules[r.IntN(len(rules))]}))
		}
	}
	if held < 100 || hits < 50 {
		t.Errorf("%d of 600 pushes waited in part, %d had the places of a pull", held, hits)
	}
	require.NoError(t, e.worker.SetRules(nil))
	for k, v := range pushed {
		stamp++
		q := request{timestamp: stamp, push: true, keys: []uint64{k}, vals: make([]float32, len(v))}
		got.add(q.keys, floats(w.carry(t, q.frames())[2]), nil)
	}
	if left := pushed.difference(got) + got.difference(pushed); left != 0 {
		t.Errorf("sums are off by %v", left)
	}
	s := st()
	s.mu.Lock()
	s.restart(ReasonRestarted)
	s.mu.Unlock()
	w.close()
	if used := e.worker.budget.used.Load(); used != 0 {
		t.Errorf("%d bytes are counted of nothing", used)
	}
}

// Within a host nothing lossy is done to values, unless a rule says so, or one has a threshold
// and the process has links to other hosts.
func TestSameHostGetsNothingLossy(t *testing.T) {
	for name, c := range map[string]struct {
		rule          Rule
		leaves, lossy bool
	}{
		"one host":              {rule: Rule{Threshold: 0.99, Unpulled: true}},
		"one host, asked":       {rule: Rule{Threshold: 0.99, Unpulled: true, SameHost: true}, lossy: true},
		"several hosts":         {rule: Rule{Threshold: 0.99, Unpulled: true}, leaves: true, lossy: true},
		"several, no threshold": {rule: Rule{Quantize: 2, Unpulled: true}, leaves: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnds(t, c.rule)
			l := e.link()
			l.Acceptor, l.Destination = l.Dialer, netip.MustParseAddrPort("198.18.0.1:9000")
			s, own, err := e.worker.Open(l, e.worker.Offer())
			require.NoError(t, err)
			l.Dialed = false
			back, r, err := e.worker.Open(l, e.worker.Offer())
			require.NoError(t, err)
			for _, c := range []interface{ Close() }{s, own, back, r} {
				defer c.Close()
			}
			s.(relay.Greeter).Ready(zmtp.Ready{Identity: []byte("ps9")})
			w := &way{sender: s, receiver: r}
			carry := func(timestamp int32) (whole bool) {
				q := request{timestamp: timestamp, push: true, keys: []uint64{1}, vals: normal(rand.New(rand.NewPCG(1, 1)), 1000)}
				return slices.Equal(floats(w.carry(t, q.frames())[2]), q.vals)
			}
			if c.leaves { // the link to another host comes after the first push
				if !carry(1) {
					t.Error("not all values of the first push arrived")
				}
				defer e.dial(t, e.worker, e.server, "ps9").close()
			}
			if whole := carry(2); whole == c.lossy {
				t.Errorf("all values arrived: %v", whole)
			}
			if held := len(e.worker.Held(l.Job, true)) > 0 && e.worker.Held(l.Job, true)[0].altersPushes(); held != c.lossy {
				t.Errorf("a rule is said to alter pushes: %v", held)
			}
		})
	}
}

// Under a threshold few parameters change, and answers leave out those that their worker has,
// while that pays, without being any other answers for it.
func TestAnswersUnderThreshold(t *testing.T) {
	e := newEnds(t, Rule{Threshold: 0.99})
	pays, altered := true, false
	l := e.link()
	l.Pays, l.Altered = func() bool { return pays }, func() { altered = true }
	w := e.open(t, l, e.server, e.worker, "ps8")
	defer w.close()
	r := rand.New(rand.NewPCG(4, 4))
	model := normal(r, 5000)
	for i := range int32(20) {
		pays = i < 10 || i > 14
		q := request{timestamp: i, pull: true, answer: true}
		for k := range model {
			if r.IntN(3) == 0 {
				q.keys, q.vals = append(q.keys, uint64(k)), append(q.vals, model[k])
			}
		}
		before := w.encoded
		if got := w.carry(t, q.frames())[2]; !bytes.Equal(got, pslite.AppendFloat32(nil, q.vals)) {
			t.Fatalf("answer %d has other values", i)
		}
		if took := w.encoded - before; (i == 9 || i == 19) && took > len(q.vals) {
			t.Errorf("answer %d of %d values takes %d bytes", i, len(q.vals), took)
		} else if !pays && took < 4*len(q.vals) {
			t.Errorf("answer %d takes %d bytes, although encoding does not pay", i, took)
		}
		for range 10 {
			model[r.IntN(len(model))] = r.Float32()
		}
	}
	if altered {
		t.Error("answers without loss are said to differ")
	}
}

// A worker that reconnects is no other worker, although the parts of requests
// that the proxy has split have numbers far above its own.
func TestReconnectAmongParts(t *testing.T) {
	e := newEnds(t, Rule{Unpulled: true, Threshold: 0.99})
	r := rand.New(rand.NewPCG(3, 3))
	pushed, got := sums{}, sums{}
	send := func(w *way, timestamp int32) {
		t.Helper()
		q := request{timestamp: timestamp, push: true, keys: []uint64{1}}
		for range 1000 {
			q.vals = append(q.vals, float32(r.IntN(9)-4))
		}
		pushed.add(q.keys, q.vals, nil)
		got.add(q.keys, floats(w.carry(t, q.frames())[2]), nil)
	}
	for i := range int32(5) {
		w := e.dial(t, e.worker, e.server, "ps9")
		for j := range int32(2000) { // more than are remembered
			send(w, route.FirstOwn+2000*i+j)
		}
		w.close()
		w = e.dial(t, e.worker, e.server, "ps9")
		send(w, 100+i) // the router passes on what has no displaced key
		w.close()
	}
	if n := e.worker.Counts().Reasons[ReasonRestarted]; n != 0 {
		t.Errorf("the worker was taken for another one %d times", n)
	}
	require.NoError(t, e.worker.SetRules(nil))
	w := e.dial(t, e.worker, e.server, "ps9")
	defer w.close()
	send(w, 200)
	if left := pushed.difference(got) + got.difference(pushed); left != 0 {
		t.Errorf("sums are off by %v", left)
	}
}

// Where nothing says that servers add up what they get, an ending worker causes no
// push that its servers do not expect: it is counted, and what waits stays.
func TestNoPushesForServersThatMayCount(t *testing.T) {
	e := newEnds(t, Rule{Unpulled: true, Threshold: 0.99})
	e.worker.adds = false
	up, down := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.server, e.worker, "ps8")
	defer up.close()
	defer down.close()
	up.carry(t, request{push: true, keys: []uint64{1}, vals: normal(rand.New(rand.NewPCG(1, 1)), 1000)}.frames())
	before := e.worker.Waiting()
	up.carry(t, control(pslite.Meta{Request: true, Control: pslite.Control{Cmd: pslite.Barrier, BarrierGroup: 7}}))
	if err := e.worker.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	if sent := up.own(t); len(sent) != 0 {
		t.Errorf("%d messages were sent", len(sent))
	}
	if now := e.worker.Waiting(); now != before || before == 0 {
		t.Errorf("%v waits, before the end it was %v", now, before)
	}
	if n := e.worker.Counts().Reasons[ReasonNotSent]; n != 1 {
		t.Errorf("%d streams were counted, want 1", n)
	}
}

// unlocked is a log's writer that notes whether the codec's maps were free whenever something was
// written.
type unlocked struct {
	codec  *Codec
	lines  int
	locked bool
}

func (u *unlocked) Write(b []byte) (int, error) {
	u.lines++
	if u.codec.mu.TryLock() {
		u.codec.mu.Unlock()
	} else {
		u.locked = true
	}
	return len(b), nil
}

// The file of a worker that has been gone for long is read and removed without the lock that
// messages of all connections take: the disk may be slow.
func TestAbandonedFilesAreRemovedWithoutTheLock(t *testing.T) {
	for name, begin := range map[string]func(c *Codec) error{
		"look": func(c *Codec) error { _, err := c.Restore(""); return err },
		"another worker": func(c *Codec) error {
			c.leave(c.join(owner{node: "ps11", server: netip.MustParseAddrPort("198.18.0.1:9100")}, true))
			return nil
		},
	} {
		u := &unlocked{}
		c := require.Value(New(Options{Compact: compact.DefaultLimits, Rules: []Rule{{Unpulled: true, Threshold: 0.9}}, Folder: t.TempDir(),
			Log: slog.New(slog.NewTextHandler(u, &slog.HandlerOptions{Level: slog.LevelWarn}))}))(t)
		u.codec = c
		now := time.Now()
		c.now = func() time.Time { return now }
		e := newEnds(t)
		w := e.dial(t, c, e.server, "ps9")
		w.carry(t, pushes(rand.New(rand.NewPCG(1, 1)), 0).frames())
		w.close()
		// Its removal fails, which is logged while it is tried.
		files, err := filepath.Glob(filepath.Join(c.folder, "*"+fileSuffix))
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		require.NoError(t, os.Remove(files[0]))
		now = now.Add(idleFor + time.Second)
		require.NoError(t, begin(c))
		if n := c.Counts().Reasons[ReasonAbandoned]; n != 1 || u.lines != 2 {
			t.Errorf("%s: %d workers were given up, in %d lines; want 1 in 2", name, n, u.lines)
		}
		if u.locked {
			t.Errorf("%s: the codec was locked meanwhile", name)
		}
	}
}

// A worker goes whose barrier went past this proxy: what waited of it is counted and
// said, once; where the barrier was seen it was said then.
func TestBarrierThatWasNotSeen(t *testing.T) {
	for _, seen := range []bool{false, true} {
		var text strings.Builder
		c := require.Value(New(Options{Compact: compact.DefaultLimits, Rules: []Rule{{Unpulled: true, Threshold: 0.9}}, Folder: t.TempDir(),
			Log: slog.New(slog.NewTextHandler(&text, nil))}))(t)
		now := time.Now()
		c.now = func() time.Time { return now }
		e := newEnds(t)
		w := e.dial(t, c, e.server, "ps9")
		w.carry(t, pushes(rand.New(rand.NewPCG(1, 1)), 0).frames())
		if seen {
			w.carry(t, control(pslite.Meta{Request: true, Timestamp: 9, Control: pslite.Control{Cmd: pslite.Barrier, BarrierGroup: 7}}))
		}
		w.close()
		for range 3 {
			now = now.Add(idleFor)
			require.Value(c.Restore(""))(t)
			now = now.Add(time.Second)
		}
		said := "without a barrier visible to this proxy"
		if seen {
			said = "a worker exits with residuals"
		}
		if n := strings.Count(text.String(), "level=WARN"); n != 1 || !strings.Contains(text.String(), said) {
			t.Errorf("seen %v: %s", seen, text.String())
		}
		if n := c.Counts(); n.Reasons[ReasonAbandoned] != 1 || n.Streams != 0 {
			t.Errorf("seen %v: %+v", seen, n)
		}
		if files, err := os.ReadDir(c.folder); err != nil || len(files) > 0 {
			t.Error("its file stays", files, err)
		}
	}
}
