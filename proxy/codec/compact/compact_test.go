package compact

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/keylist"
	"github.com/psidecar/psidecar/proxy/relay"
)

// A step of a sparse model pulls some keys, gets them and pushes the same ones.
func TestStepsOfATrainingJob(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	words := randomKeys(rng, 5000)
	for _, dialect := range []pslite.Dialect{pslite.DMLC, pslite.DMLC2018, pslite.DMLC2017, pslite.BytePSRaw} {
		t.Run(dialect.String(), func(t *testing.T) {
			p := newTwoProxies(DefaultLimits)
			for step := range int32(100) {
				keys := make([]uint64, 800)
				for i := range keys {
					keys[i] = words[int(float64(len(words))*rng.Float64()*rng.Float64())]
				}
				slices.Sort(keys)
				keys = slices.Compact(keys)
				p.requests.pass(t, data(dialect, 2*step, true, false, true, keys, nil, nil))
				p.answers.pass(t, data(dialect, 2*step, false, false, true, keys, randomBytes(rng, 4*len(keys)), nil))
				p.requests.pass(t, data(dialect, 2*step+1, true, true, false, keys, randomBytes(rng, 4*len(keys)), nil))
			}
			if p.requests.messages != 200 || p.answers.messages != 100 {
				t.Errorf("%d requests and %d answers were encoded, want 200 and 100", p.requests.messages, p.answers.messages)
			}
			if ratio := float64(p.requests.plain+p.answers.plain) / float64(p.requests.encoded+p.answers.encoded); ratio < 3 {
				t.Errorf("%.2f times fewer bytes, want 3", ratio)
			}
			if n := len(p.worker.asked) + len(p.server.due) + len(p.server.byReq); n != 0 {
				t.Errorf("%d requests are still remembered", n)
			}
		})
	}
}

// Messages of all kinds, some lost, some repeated, with links that break, under
// limits that bite.
func TestAnyTraffic(t *testing.T) {
	limits := Limits{
		Keys:             keylist.Limits{TableBytes: 8192, TableLists: 6, DictionaryKeys: 500, ListBytes: 1 << 16},
		Lens:             keylist.Limits{TableBytes: 1024, TableLists: 3, ListBytes: 1 << 16},
		RetainedRequests: 5, RetainedBytes: 8000,
	}
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		p := newTwoProxies(limits)
		pays := func() bool { return rng.IntN(4) > 0 }
		p.requests.sender.pays, p.answers.sender.pays = pays, pays
		lists := [][]uint64{randomKeys(rng, 100), randomKeys(rng, 3), randomKeys(rng, 1), nil, {5, 5, 2}}
		link := uint64(100)
		for step := range int32(rapid.IntRange(1, 80).Draw(t, "steps")) {
			keys := lists[rng.IntN(len(lists))]
			if rng.IntN(3) == 0 {
				keys = randomKeys(rng, rng.IntN(300))
				lists = append(lists, keys)
			}
			var lens []byte
			if rng.IntN(3) == 0 {
				lens = pslite.AppendLens(nil, slices.Repeat([]int32{int32(rng.IntN(4))}, len(keys)))
			}
			timestamp := step - int32(rng.IntN(3))
			push, pull := rng.IntN(2) == 0, rng.IntN(2) == 0
			request := data(pslite.DMLC, timestamp, true, push, pull, keys, randomBytes(rng, rng.IntN(50)), lens)
			p.requests.show(t, request, 1+rng.IntN(len(request)))
			for range rng.IntN(3) {
				p.answers.pass(t, data(pslite.DMLC, timestamp, false, push, pull, keys, randomBytes(rng, rng.IntN(50)), lens))
			}
			if rng.IntN(10) == 0 {
				link++
				p.reconnectRequests(link)
				p.requests.sender.pays = pays
			}
			checkQuotas(t, p, limits)
		}
	})
}

func checkQuotas(t *rapid.T, p *twoProxies, limits Limits) {
	kept := 0
	for _, keys := range p.worker.asked {
		kept += len(keys)
	}
	if (p.worker.kept != quota{len(p.worker.asked), kept}) || kept > limits.RetainedBytes || len(p.worker.asked) > limits.RetainedRequests {
		t.Fatalf("the worker's proxy keeps %d requests of %d bytes, counted %+v", len(p.worker.asked), kept, p.worker.kept)
	}
	owed, due := 0, 0
	for _, a := range p.server.byReq {
		owed += len(a.keys)
	}
	for _, list := range p.server.due {
		due += len(list)
	}
	if (p.server.owed != quota{len(p.server.byReq), owed}) || due != len(p.server.byReq) {
		t.Fatalf("the server's proxy knows %d requests of %d bytes, %d by exchange, counted %+v", len(p.server.byReq), owed, due, p.server.owed)
	}
	if len(p.server.byReq) > len(p.worker.asked) {
		t.Fatalf("the server's proxy may name %d requests, but %d are kept", len(p.server.byReq), len(p.worker.asked))
	}
}

// What does not pay passes as it is; an answer whose keys the other end retains
// is encoded all the same, or they would be retained for ever.
func TestNothingIsRetainedWhereEncodingDoesNotPay(t *testing.T) {
	p := newTwoProxies(DefaultLimits)
	pays := true
	p.requests.sender.pays = func() bool { return pays }
	p.answers.sender.pays = p.requests.sender.pays
	keys := []uint64{3, 5, 7, 9}
	step := func(timestamp int32, between func()) {
		p.requests.pass(t, data(pslite.DMLC, timestamp, true, false, true, keys, nil, nil))
		between()
		p.answers.pass(t, data(pslite.DMLC, timestamp, false, false, true, keys, []byte("abcdefgh"), nil))
	}
	step(1, func() { pays = false })
	if p.requests.messages != 1 || p.answers.messages != 1 {
		t.Errorf("%d requests and %d answers were encoded, want 1 each", p.requests.messages, p.answers.messages)
	}
	step(2, func() {})
	step(3, func() { pays = true })
	if p.requests.messages != 1 || p.answers.messages != 2 {
		t.Errorf("%d requests and %d answers were encoded, want 1 and 2: the second answer did not pay", p.requests.messages, p.answers.messages)
	}
	if n := len(p.worker.asked) + len(p.server.due) + len(p.server.byReq); n != 0 {
		t.Errorf("%d requests are remembered after the answers", n)
	}
}

// A repeated request is answered once: it must not be kept twice.
func TestRepeatedRequestIsKeptOnce(t *testing.T) {
	p := newTwoProxies(DefaultLimits)
	keys := []uint64{3, 5, 7, 9}
	for range 3 {
		p.requests.pass(t, data(pslite.DMLC, 1, true, false, true, keys, nil, nil))
	}
	p.answers.pass(t, data(pslite.DMLC, 1, false, false, true, keys, []byte("abcdefgh"), nil))
	if n := len(p.worker.asked) + len(p.server.byReq); n != 0 {
		t.Errorf("%d requests are remembered after the answer", n)
	}
}

// Two workers on one host may ask for different keys at equal timestamps.
func TestEqualTimestamps(t *testing.T) {
	p := newTwoProxies(DefaultLimits)
	other := direction{sender: p.worker.newSender(8, true, 1<<20, new(relay.Loan)), receiver: p.server.newReceiver(8, false, new(relay.Loan))}
	a, b := []uint64{1, 2, 3}, []uint64{4, 5, 6}
	p.requests.pass(t, data(pslite.DMLC, 1, true, false, true, a, nil, nil))
	other.pass(t, data(pslite.DMLC, 1, true, false, true, b, nil, nil))
	p.answers.pass(t, data(pslite.DMLC, 1, false, false, true, b, []byte("abcdefgh"), nil))
	p.answers.pass(t, data(pslite.DMLC, 1, false, false, true, a, []byte("abcdefgh"), nil))
	if n := len(p.worker.asked); n != 0 {
		t.Errorf("%d requests are remembered after both answers", n)
	}
}

func TestSmallAndForeignMessagesPassAsTheyAre(t *testing.T) {
	s := NewPeer(DefaultLimits).newSender(1, true, 1<<20, new(relay.Loan))
	for _, tc := range []struct {
		name   string
		frames [][]byte
	}{
		{"push's answer", data(pslite.DMLC, 1, false, true, false, nil, nil, nil)[:1]},
		{"one key", data(pslite.DMLC, 1, true, true, false, []uint64{1}, []byte("abcd"), nil)},
		{"no message", [][]byte{[]byte("GET / HTTP/1.1")}},
		{"no frames", nil},
		{"more than a head may be", data(pslite.DMLC, 1, true, true, false, randomKeys(rand.New(rand.NewPCG(1, 1)), 1<<17), nil, nil)},
		{"five data frames", append(data(pslite.DMLC, 1, true, true, false, []uint64{1, 2, 3}, nil, nil), nil, nil, nil)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if head, _, ok := s.Encode(nil, &relay.Message{Frames: tc.frames}); ok || len(head) > 0 {
				t.Errorf("it was encoded in %d bytes", len(head))
			}
		})
	}
}

func TestCorruptHeads(t *testing.T) {
	for _, head := range [][]byte{
		nil, {0xff}, {0}, {0, 200}, {0, 1}, {keysOfRequest, 2, 1, 0, 0}, {hasIdentity, 50}, {retained, 0, 0, 0},
		{0, 4, 1, 2, 9}, {0, 0, 0, 0, 0}, {hasLens, 0, 0, 0}, {hasLens | hasValues, 0, 0, 0},
	} {
		t.Run(fmt.Sprintf("%x", head), func(t *testing.T) {
			if _, _, err := NewPeer(DefaultLimits).newReceiver(1, false, new(relay.Loan)).Decode(head); !errors.Is(err, ErrCorrupt) {
				t.Errorf("error %v, want ErrCorrupt", err)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	s := NewPeer(DefaultLimits).newSender(1, true, 1<<20, new(relay.Loan))
	for i := range int32(3) {
		frames := data(pslite.DMLC, i, true, i%2 == 0, true, []uint64{1, 5, uint64(i) + 9}, []byte("abcd"), pslite.AppendLens(nil, []int32{1, 2, 3}))
		head, _, _ := s.Encode(nil, &relay.Message{Frames: frames})
		f.Add(head, head)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		limits := Limits{Keys: keylist.Limits{TableBytes: 4096, TableLists: 4, DictionaryKeys: 100, ListBytes: 1 << 16},
			Lens: keylist.Limits{TableBytes: 4096, TableLists: 4, ListBytes: 1 << 16}, RetainedRequests: 4, RetainedBytes: 4096}
		r := NewPeer(limits).newReceiver(1, false, new(relay.Loan))
		for _, head := range [][]byte{first, second} {
			frames, plain, err := r.Decode(head)
			if err != nil {
				if !errors.Is(err, ErrCorrupt) {
					t.Fatalf("an error without ErrCorrupt: %v", err)
				}
				return
			}
			if len(frames) < 2 || plain>>len(frames) != 0 {
				t.Fatalf("%d frames, plain %b", len(frames), plain)
			}
		}
	})
}
