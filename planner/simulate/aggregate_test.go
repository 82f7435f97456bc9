package simulate

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/recording"
	"github.com/psidecar/psidecar/test/require"
)

// hostsOneByOne plays a job of real values on two hosts with three workers each and a server
// beside each, and counts what crosses between the hosts transfer by transfer: as it is, and
// as proxies do that send a host no values that it has, byte for byte, and one sum of what
// its workers push of a key in a step. What it records is what agents would.
type hostsOneByOne struct {
	values [2]map[uint64][]byte // by server
	sent   [2]map[string]string // by host: values of lists that came from the other host
	uses   [2][]recording.Use
	now    int64

	plain, shared, summed float64 // bytes at each host, which are the same: all that crosses
	isShared, isCarried   uint64
	isPartial, isByKey    uint64
	had                   [2]map[string]string // by host, values of keys that came from the other host
}

const (
	valueBytes   = 64
	perHost      = 3
	secondServer = ^uint64(0) / 2
)

func (h *hostsOneByOne) note(host int, u recording.Use) {
	h.now += int64(time.Millisecond)
	u.UnixNanos = h.now
	h.uses[host] = append(h.uses[host], u)
}

// pull has a worker pull a list of keys from a server.
func (h *hostsOneByOne) pull(worker, server int, step int32, keys []uint64) {
	host := worker / perHost
	u := recording.Use{Worker: fmt.Sprintf("worker%d", worker), Server: fmt.Sprintf("server%d", server), Timestamp: 2 * step, Pull: true, Keys: keys}
	h.note(host, u)
	u.Answer, u.Bytes = true, uint64(valueBytes*len(keys))
	h.note(server, u)
	if server == host {
		return
	}
	var all []byte
	for _, key := range keys {
		all = append(all, h.values[server][key]...)
	}
	head := float64(16 * len(keys))
	h.plain += head + float64(len(all))
	h.summed += head + float64(len(all))
	list := fmt.Sprint(server, keys)
	h.shared += head
	if len(all) >= 4096 && h.sent[host][list] == string(all) {
		h.isShared++
		return
	}
	h.sent[host][list] = string(all)
	saved := h.known(host, server, keys) - float64((len(keys)+7)/8)
	if len(all) < 4096 || 8*saved < float64(len(all)) {
		saved = 0
	} else {
		h.isByKey++
	}
	h.shared += float64(len(all)) - saved
}

// known returns how many bytes of a list's values a host has; from now on it has all of an answer that
// is large enough.
func (h *hostsOneByOne) known(host, server int, keys []uint64) (bytes float64) {
	if len(keys)*valueBytes < 4096 {
		return 0
	}
	for _, key := range keys {
		value, at := string(h.values[server][key]), fmt.Sprint(server, key)
		if h.had[host][at] == value {
			bytes += valueBytes
		}
		h.had[host][at] = value
	}
	return bytes
}

// push has a worker push a list of keys to a server; others' pushes have the values of so many of
// them.
func (h *hostsOneByOne) push(worker, server int, step int32, keys []uint64, carried int) {
	host := worker / perHost
	h.note(host, recording.Use{Worker: fmt.Sprintf("worker%d", worker), Server: fmt.Sprintf("server%d", server), Timestamp: 2*step + 1, Push: true,
		Keys: keys, Bytes: uint64(valueBytes * len(keys))})
	for _, key := range keys {
		v := h.values[server][key]
		v[0]++ // each push changes what it is of
		if v[0] == 0 {
			v[1]++
		}
	}
	if server == host {
		return
	}
	all := float64((8 + valueBytes) * len(keys))
	h.plain += all
	h.shared += all
	switch {
	case carried == len(keys):
		h.isCarried++
	case carried > 0:
		h.isPartial++
	}
	h.summed += all - float64(valueBytes*carried)
}

// play makes steps: all pull, then all push, some of them the same keys, some others, and
// some too few.
func (h *hostsOneByOne) play(steps int32) {
	random := rand.New(rand.NewPCG(1, 2))
	lists := [][]uint64{seq(0, 100), seq(50, 90), seq(500, 10), seq(secondServer, 100), seq(secondServer+200, 80)}
	for s := range h.values {
		h.values[s], h.sent[s], h.had[s] = map[uint64][]byte{}, map[string]string{}, map[string]string{}
		for _, list := range lists {
			for _, key := range list {
				h.values[s][key] = make([]byte, valueBytes)
			}
		}
	}
	known, pushed := map[string]bool{}, map[string]bool{} // lists and keys, by worker
	for step := range steps {
		var choice [2 * perHost][]int
		for w := range choice {
			choice[w] = []int{0, 3}
			if random.IntN(2) == 0 {
				choice[w] = []int{1, 2, 4}
			}
		}
		for w, chosen := range choice {
			for _, c := range chosen {
				h.pull(w, c/3, step, lists[c])
			}
		}
		carriers := map[string]bool{} // keys, by host
		for w, chosen := range choice {
			for _, c := range chosen {
				h.push(w, c/3, step, lists[c], carriedKeys(w, c, lists[c], known, pushed, carriers))
			}
		}
		h.now += int64(time.Second)
	}
}

// carriedKeys returns how many keys of a list that a worker pushes have values in others' pushes of
// its host, and updates what is known.
func carriedKeys(w, c int, list []uint64, known, pushed, carriers map[string]bool) (n int) {
	if valueBytes*len(list) < 4096 {
		return 0
	}
	mine := fmt.Sprint(w, c)
	var old []uint64
	for _, key := range list {
		if by := fmt.Sprint(w, key); known[mine] || pushed[by] {
			old = append(old, key)
		}
		pushed[fmt.Sprint(w, key)] = true
	}
	known[mine] = true
	if 8*len(old) < len(list) {
		return 0
	}
	for _, key := range old {
		at := fmt.Sprint(w/perHost, key)
		if carriers[at] {
			n++
		}
		carriers[at] = true
	}
	if 8*n < len(list) {
		return 0
	}
	return n
}

func seq(first uint64, n int) (keys []uint64) {
	for i := range uint64(n) {
		keys = append(keys, first+i)
	}
	return keys
}

// What is predicted from the recordings of a job is what is counted transfer by transfer.
func TestAggregationIsWhatIsCountedOneByOne(t *testing.T) {
	var h hostsOneByOne
	h.play(60)
	paths := []string{write(t, "a", h.uses[0]...), write(t, "b", h.uses[1]...)}
	o := defaults()
	o.Wait = 500 * time.Millisecond
	r, err := RunRecorded(paths, o)
	require.NoError(t, err)
	a := r.Aggregation
	if a.Each != perHost || a.Shared != h.isShared || a.Carried != h.isCarried || a.Partial != h.isPartial || a.ByKey != h.isByKey || h.isByKey == 0 || h.isShared == 0 || h.isCarried == 0 || h.isPartial == 0 {
		t.Errorf("%+v, want %d shared, %d by key, %d carried, %d in part", a, h.isShared, h.isByKey, h.isCarried, h.isPartial)
	}
	both := h.shared + h.summed - h.plain
	for i, want := range []float64{h.plain, h.shared, h.summed, both} {
		if got := a.Forms[i]; got.Busiest != want || got.Total != want { // two hosts: each has an end of all that crosses
			t.Errorf("%+v, counted were %.0f bytes", got, want)
		}
	}
	// Nobody waits that long: pushes of a step are apart by more than a microsecond.
	o.Wait = time.Microsecond
	if r, err = RunRecorded(paths, o); err != nil || r.Aggregation.Carried+r.Aggregation.Partial != 0 || r.Aggregation.Shared != h.isShared {
		t.Errorf("with hardly a wait: %+v, %v", r.Aggregation, err)
	}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "--share-pulls") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	o.Wait = -1
	if err := o.Check(); err == nil || !strings.Contains(err.Error(), "--aggregate-wait") {
		t.Errorf("a wait below 0: %v", err)
	}
}

// Where each worker is alone on its host nothing is saved, and that is said.
func TestAggregationOfWorkersThatAreAlone(t *testing.T) {
	keys := seq(0, 100)
	var uses []recording.Use
	for step := range int32(4) {
		for _, worker := range []string{"worker0", "worker1"} {
			uses = append(uses, recording.Use{Worker: worker, Server: "server0", UnixNanos: int64(step), Timestamp: step, Push: true, Keys: keys, Bytes: 6400})
		}
	}
	r := require.Value(RunRecorded([]string{write(t, "a", uses...)}, defaults()))(t)
	var out bytes.Buffer
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "no machine has two workers") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	if a := r.Aggregation; a.Carried+a.Shared > 0 || slices.ContainsFunc(a.Forms, func(f AggregationForm) bool { return f.Busiest != a.Forms[0].Busiest }) {
		t.Errorf("%+v", a)
	}
}

// What is forgotten for want of room is not taken for unchanged.
func TestForgottenPushesSaveNothing(t *testing.T) {
	for _, most := range []int{2, maxKept} {
		a := newAggregating(&machines{count: 2, worker: []int{0, 0}, server: []int{1}}, 8, 0)
		a.most = most
		keys := []uint64{1}
		pull := func(worker int) {
			a.take(&recording.Use{Pull: true, Answer: true, Keys: keys, Bytes: leastShared}, worker, 0, leastShared)
		}
		push := func(keys ...uint64) {
			a.take(&recording.Use{Push: true, Keys: keys, Bytes: leastShared}, 0, 0, leastShared)
		}
		pull(0)
		push(keys...)
		push(2, 3, 4) // more than there is room for
		if pull(1); a.out.Shared != 0 {
			t.Errorf("room for %d: a value that was pushed since counts as shared", most)
		}
		if pull(0); a.out.Shared != 1 {
			t.Errorf("room for %d: %d values are shared, want 1", most, a.out.Shared)
		}
	}
}
