// Package pattern has ways of using PS-lite that programs in use have, each as a small job: which
// keys of which types its workers push and pull, in which requests, and what its servers do with a
// push. test/matrix and test/life run them; the program is test/matrix/job.
//
// What a job ends with follows from how many rounds each worker made: [Pattern.Expect] computes it
// without a network. That needs sums that are exact in any order (whole numbers, multiples of the
// smallest denormal one), or keys that one worker alone pushes (Own).
package pattern

import (
	"cmp"
	"math"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Kind is how a value's numbers are stored, whatever type the message says they have.
type Kind int

// The kinds.
const (
	Float32 Kind = iota
	Float64
	Float16
	Int32
	Int64
	TwoBit // pushed as codes of two bits, pulled as float32, as MXNet compresses gradients
)

// Handler is what servers do with a push.
type Handler int

// The handlers.
const (
	Add     Handler = iota
	Assign          // the value is what was pushed last
	Count           // the first number of a value counts the pushes, the others add
	Collect         // as MXNet's synchronous servers: pushes of all workers are added and answered together
	FTRL            // McMahan et al. 2013, Algorithm 1
)

// Key is a key with its value.
type Key struct {
	Key    uint64
	App    int32
	Push   int32 // command (PS-lite's cmd) of pushes
	Pull   int32 // and of pulls
	Table  int32 // keys with equal numbers and another table are others
	Kind   Kind
	Type   pslite.DataType // of values in messages
	Width  int             // numbers in the value
	Worker int             // that alone uses it, by rank; -1: all do
	Unused bool            // pulled, but never pushed
}

// Pattern is a way of using PS-lite.
type Pattern struct {
	Name             string
	Servers, Workers int
	Dialect          pslite.Dialect
	Env              []string
	Apart            bool // the scheduler is on a host without psidecar
	Handler          Handler
	Keys             []Key
	Requests         [][]int // keys of a request, by their place in Keys
	Lens             bool    // requests have lengths
	AnswerLens       bool    // pulls have none, their answers do
	PushPull         bool    // in one request
	Priorities       bool    // earlier requests are handled first, as MXNet asks for
	Wait             bool    // for each request
	Customers        int     // KVWorkers that a worker shares its requests among
	ServersEach      int     // servers in a process
	WorkersEach      int     // workers in a process
	Slicer           bool    // a slicer of its own: keys spread evenly by their order
	OneKey           bool    // servers refuse requests of several keys
	Value            func(worker, round, key, i int) float64
	Rounds           int // at least
	// Left is the round before which the last worker's process ends, without a word; another takes its place. 0: it stays.
	Left int
	// Checkpoint has the first worker push other values than usual in that round, after it has pulled: a checkpoint.
	Checkpoint int
}

// Adds reports whether the servers add each push at once.
func (p *Pattern) Adds() bool { return p.Handler == Add }

// Resends reports whether nodes repeat what is lost.
func (p *Pattern) Resends() bool { return slices.Contains(p.Env, "PS_RESEND=1") }

// KeyList returns the distinct keys in ascending order, of all apps and tables.
func (p *Pattern) KeyList() (all []uint64) {
	for _, k := range p.Keys {
		all = append(all, k.Key)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// value is what a worker pushes.
func (p *Pattern) value(worker, round, key, i int) float64 {
	if p.Checkpoint > 0 && worker == 0 && round == p.Checkpoint {
		return float64(7 * (1 + (key+i)%5))
	}
	if p.Value != nil {
		return p.Value(worker, round, key, i)
	}
	// Keys of another table or app end with other values, although their numbers may be equal.
	of := &p.Keys[key]
	return float64((1 + of.Table + of.App) * int32(1+(worker+2*round+key+3*i)%3))
}

// server returns the rank of the server that a key is asked of.
func (p *Pattern) server(at int) int {
	if p.Slicer {
		return at * p.Servers / len(p.Keys)
	}
	for s := range p.Servers {
		if _, end := pslite.KeyRange(s, p.Servers); p.Keys[at].Key < end {
			return s
		}
	}
	return p.Servers - 1
}

// spread returns n keys, as many of each server as there are servers, and their requests of one key each.
func spread(n, width int, change func(i int, k *Key)) (keys []Key, single [][]int) {
	for i := range n {
		k := Key{Key: math.MaxUint64/uint64(n)*uint64(i) + 17, Type: pslite.Float, Width: width, Worker: -1}
		if change != nil {
			change(i, &k)
		}
		keys, single = append(keys, k), append(single, []int{i})
	}
	return keys, single
}

// upTo returns the numbers from low to below high.
func upTo(low, high int) (all []int) {
	for i := low; i < high; i++ {
		all = append(all, i)
	}
	return all
}

// typed changes a key to one of another kind, as typed in messages.
func typed(k *Key, kind Kind) {
	k.Kind = kind
	k.Type = map[Kind]pslite.DataType{Float32: pslite.Float, Float64: pslite.Double, Int32: pslite.Int32, Int64: pslite.Int64}[kind]
}

// command returns MXNet's command: the kind of request and the type of the numbers, paired as Cantor does.
func command(request, number int32) int32 {
	return (request+number)*(request+number+1)/2 + number
}

// MXNet's kinds of requests, and its types.
const (
	plainRequest, rowSparse, compressed = 0, 1, 2
	mxFloat32, mxFloat16, mxInt64       = 0, 2, 6
)

// asMXNet changes a key to bytes whose command says what they are.
func asMXNet(k *Key, kind Kind) {
	k.Kind, k.Type = kind, pslite.Char
	switch kind {
	case Float32:
		k.Push = command(plainRequest, mxFloat32)
	case Float16:
		k.Push = command(plainRequest, mxFloat16)
	case Int64:
		k.Push = command(plainRequest, mxInt64)
	case TwoBit:
		k.Push = command(compressed, mxFloat32)
	}
	k.Pull = k.Push
}

// All returns all patterns.
func All() (all []*Pattern) {
	add := func(name string, p Pattern) {
		p.Name = name
		p.Servers, p.Workers = cmp.Or(p.Servers, 2), cmp.Or(p.Workers, 3)
		p.Customers, p.ServersEach, p.WorkersEach = max(1, p.Customers), max(1, p.ServersEach), max(1, p.WorkersEach)
		p.Dialect, p.Rounds = cmp.Or(p.Dialect, pslite.DMLC), cmp.Or(p.Rounds, 40)
		all = append(all, &p)
	}
	plain := func(n, width int, change func(i int, k *Key)) Pattern {
		keys, single := spread(n, width, change)
		return Pattern{Keys: keys, Requests: single}
	}
	inOne := func(p Pattern) Pattern {
		p.Requests = [][]int{upTo(0, len(p.Keys))}
		return p
	}

	// Single keys, each by itself.
	p := plain(20, 200, nil)
	p.Priorities = true
	add("single keys without waiting", p)
	p = plain(20, 3, nil)
	p.Wait, p.Rounds = true, 10
	add("single keys, waiting", p)
	p = plain(12, 1, func(i int, k *Key) { k.Width = 1 + 7*(i%4) })
	add("single keys of several widths", p)
	p = plain(12, 1, func(i int, k *Key) { k.Width = 1 + 7*(i%4) })
	p.Dialect = pslite.DMLC2017
	add("single keys of several widths, dialect of 2017", p)
	p = plain(12, 5, nil)
	p.OneKey = true
	add("servers that want one key a request", p)
	p = plain(12, 5, nil)
	p.Customers = 2
	add("two KVWorkers in a process", p)
	p = plain(12, 5, nil)
	p.Workers, p.WorkersEach = 4, 2
	add("two workers in a process", p)
	p = plain(16, 40, nil)
	p.PushPull, p.Priorities = true, true
	add("pushes and pulls in one request, not waiting", p)
	p = plain(10, 4, nil)
	p.Env = []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=100", "PS_DROP_MSG=3"}
	add("single keys, resend and loss", p)
	p = plain(10, 4, nil)
	p.Env = []string{"PS_HEARTBEAT_INTERVAL=1", "PS_HEARTBEAT_TIMEOUT=30"}
	add("heartbeats", p)
	p = inOne(plain(40, 3, nil))
	p.Apart = true
	add("the scheduler on a host without psidecar", p)

	// Tables, apps, slicers.
	p = Pattern{}
	for table := range int32(3) {
		keys, _ := spread(8, 4, func(_ int, k *Key) { k.Push, k.Pull, k.Table = table, table, table })
		p.Requests = append(p.Requests, upTo(len(p.Keys), len(p.Keys)+len(keys)))
		p.Keys = append(p.Keys, keys...)
	}
	add("commands as tables", p)
	p = Pattern{}
	for app := range int32(2) {
		keys, _ := spread(8, 4, func(_ int, k *Key) { k.App = app })
		p.Requests = append(p.Requests, upTo(len(p.Keys), len(p.Keys)+len(keys)))
		p.Keys = append(p.Keys, keys...)
	}
	add("two apps", p)
	p = Pattern{}
	for app := range int32(2) { // the second app is that of one worker alone
		keys, _ := spread(8, 4, func(_ int, k *Key) { k.App, k.Worker = app, -1+2*int(app) })
		p.Requests = append(p.Requests, upTo(len(p.Keys), len(p.Keys)+len(keys)))
		p.Keys = append(p.Keys, keys...)
	}
	add("a second app of one worker", p)
	p = inOne(plain(60, 1, func(i int, k *Key) { k.Key = uint64(i) }))
	p.Slicer = true
	add("a slicer of its own", p)

	// Widths and lengths.
	lens := func(d pslite.Dialect) Pattern {
		p := inOne(plain(20, 1, func(i int, k *Key) { k.Width = i % 5 * 3 })) // some have no values
		p.Lens, p.Dialect = true, d
		return p
	}
	add("lengths, some zero", lens(pslite.DMLC))
	add("lengths, some zero, dialect of 2018", lens(pslite.DMLC2018))
	add("lengths, some zero, dialect of 2017", lens(pslite.DMLC2017))
	p = lens(pslite.DMLC)
	p.AnswerLens = true
	add("lengths in pushes and in answers alone", p)
	widths := func(d pslite.Dialect) Pattern {
		p := plain(24, 2, func(i int, k *Key) { k.Width = 2 + i%2 })
		p.Requests, p.Dialect = [][]int{nil, nil}, d
		for i := range p.Keys {
			p.Requests[i%2] = append(p.Requests[i%2], i)
		}
		return p
	}
	add("two widths", widths(pslite.DMLC))
	add("two widths, dialect of 2018", widths(pslite.DMLC2018))
	add("two widths, dialect of 2017", widths(pslite.DMLC2017))
	p = inOne(plain(30, 2, nil))
	p.PushPull, p.Wait = true, true
	add("push and pull in one request", p)

	// Which keys.
	p = plain(12, 4, nil)
	p.Requests = [][]int{{0, 0, 1, 2, 2, 2, 3}, {3, 4, 5}, {6, 7, 8, 9, 10, 11}}
	add("keys several times in a request", p)
	p = plain(12, 4, func(i int, k *Key) { k.Key = uint64(i * 5) })
	p.Requests = [][]int{{7, 2, 9, 0, 1}, {3, 11, 4}, {10, 8, 6, 5}}
	add("keys not in order", p)
	p = inOne(plain(16, 4, func(i int, k *Key) { k.Unused = i%2 == 1 }))
	add("keys that nobody pushes", p)

	// Types.
	for _, x := range []struct {
		name string
		kind Kind
	}{{"doubles", Float64}, {"32-bit integers", Int32}, {"64-bit integers", Int64}} {
		add(x.name, inOne(plain(20, 6, func(_ int, k *Key) { typed(k, x.kind) })))
	}
	kinds := []Kind{Float32, Float16, Int64, TwoBit}
	p = plain(8, 64, func(i int, k *Key) { asMXNet(k, kinds[i%4]) })
	// One in four: float16 holds whole numbers up to 2048.
	p.Value = func(worker, round, key, i int) float64 { return float64((worker + round + key + i) % 4 / 3) }
	p.Priorities = true
	add("MXNet's commands: float32, float16, int64, 2 bits", p)
	p = plain(16, 1, func(i int, k *Key) {
		// A row-sparse request begins with the array's own key, without a value.
		home := uint64(math.MaxUint64/2) * uint64(i/8)
		k.Key, k.Kind, k.Type, k.Width = home+uint64(i%8)+3, Float32, pslite.Char, 8
		k.Push, k.Pull = command(rowSparse, mxFloat32), command(rowSparse, mxFloat32)
		if i%8 == 0 {
			k.Width = 0
		}
	})
	p.Requests, p.Lens = [][]int{upTo(0, 8), upTo(8, 16)}, true
	add("MXNet's row-sparse pushes", p)
	special := func(worker, round, key, i int) float64 {
		switch (key + i) % 6 {
		case 0:
			return math.NaN()
		case 1:
			return math.Inf(1)
		case 2:
			return math.Copysign(0, -1)
		case 3:
			return math.SmallestNonzeroFloat32 * float64(1+(worker+round)%3)
		case 4:
			return -float64(1 + (worker+round)%3)
		}
		return float64(1 + (worker+round)%3)
	}
	p = inOne(plain(12, 12, nil))
	p.Value = special
	add("NaN, infinity, -0, denormals", p)

	// Servers.
	own := func(i int, k *Key) { k.Worker = i % 3 }
	p = plain(12, 12, own)
	p.Handler, p.Value = Assign, special
	add("servers that assign: NaN, infinity, -0, denormals", p)
	p = plain(12, 4, nil)
	p.Handler = Count
	add("servers that count pushes", p)
	p = plain(12, 30, nil)
	p.Handler = Collect
	add("servers that answer all workers' pushes together", p)
	p = plain(12, 4, own)
	p.Handler = FTRL
	p.Value = func(worker, round, key, i int) float64 {
		return float64((worker*7+round*3+key*5+i)%11-5) / 8
	}
	add("FTRL", p)
	p = plain(12, 5, nil)
	p.Left = 17
	add("a worker replaced on another host", p)
	keys, single := spread(64, 2, nil)
	add("32 servers", Pattern{Servers: 32, ServersEach: 16, Keys: keys, Requests: append(single[:3:3], upTo(0, 64))})
	p = inOne(plain(24, 8, nil))
	p.Checkpoint = 9
	add("a checkpoint loaded midway", p)
	p = plain(4, 300_000, nil)
	p.Rounds, p.Wait = 12, true
	add("values of 1.2 MB", p)
	return all
}

// Find returns the pattern of a name, nil if there is none.
func Find(name string) *Pattern {
	for _, p := range All() {
		if p.Name == name {
			return p
		}
	}
	return nil
}
