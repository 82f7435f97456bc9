package route

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

// forgetful is a ledger for jobs that repeat nothing.
type forgetful struct{ last int32 }

func (l *forgetful) Next() int32       { l.last++; return FirstOwn + l.last }
func (*forgetful) Resend() bool        { return false }
func (*forgetful) UseResend()          {}
func (*forgetful) Open(Kept)           {}
func (*forgetful) Mark(ID, Flags)      {}
func (*forgetful) In(ID, uint32)       {}
func (*forgetful) Close(ID)            {}
func (*forgetful) Keep(Message)        {}
func (*forgetful) Drop(ID, int32)      {}
func (*forgetful) Messages() []Message { return nil }
func (*forgetful) Seen(ID) bool        { return false }
func (*forgetful) Split() bool         { return false }
func (*forgetful) Load() (k []Kept)    { return nil }

// adding is a server that adds.
type adding map[uint64][]float32

// answer applies a request and answers it as PS-lite's KVServer does.
func (s adding) answer(m *pslite.Message, d pslite.Dialect) [][]byte {
	var back pslite.Meta
	back.Reset()
	back.Head, back.AppID, back.CustomerID, back.Timestamp = m.Meta.Head, m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp
	back.Push, back.Pull = m.Meta.Push, m.Meta.Pull
	var data [][]byte
	var vals []float32
	var lens []byte
	at := 0
	for i := range m.Keys().Len() {
		key := m.Keys().At(i)
		if m.Meta.Push {
			n := len(m.Values().Bytes) / 4 / m.Keys().Len()
			if m.Lens() != nil {
				n = int(m.Lens().At(i))
			}
			for j := range n {
				if len(s[key]) <= j {
					s[key] = append(s[key], 0)
				}
				s[key][j] += m.Values().Float32(at)
				at++
			}
		}
		vals = append(vals, s[key]...)
		lens = append(lens, byte(len(s[key])), 0, 0, 0)
	}
	if m.Meta.Pull {
		data = [][]byte{bytes.Clone(m.Data[0]), pslite.AppendFloat32(nil, vals)}
		back.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
		if len(m.Data) > 2 {
			data = append(data, lens)
			back.DataTypes = append(back.DataTypes, pslite.Int32)
		}
	}
	return append([][]byte{back.Append(nil, d)}, data...)
}

// Requests of every dialect with displaced keys get, through several servers,
// the very bytes that one server with all keys answers, also where the keys do not ascend.
func TestSplitRequestsGetTheBytesOfOneServer(t *testing.T) {
	getTheBytesOfOneServer(t, []uint64{1, 2, 3, 1 << 63, 1<<63 + 1, 1<<64 - 3})
	getTheBytesOfOneServer(t, []uint64{3, 1 << 63, 1, 1<<64 - 3, 2, 1<<63 + 1})
}

func getTheBytesOfOneServer(t *testing.T, keys []uint64) {
	type kind struct {
		name       string
		push, pull bool
	}
	for _, d := range []pslite.Dialect{pslite.DMLC, pslite.DMLC2018, pslite.DMLC2017} {
		kinds := []kind{{"push", true, false}, {"pull", false, true}}
		if d == pslite.DMLC { // the others have no PushPull
			kinds = append(kinds, kind{"pushpull", true, true})
		}
		for _, withLens := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/lens %v/%d first", d, withLens, keys[0]), func(t *testing.T) {
				table := NewTable(3)
				for i, k := range keys {
					table.Set([]plan.Range{{Keys: plan.One(k), Owner: int32(i % 3)}})
				}
				r := New(table)
				r.Open(table)
				worker := pslite.WorkerID(0)
				r.AddWorker(worker, &forgetful{})
				servers, whole := []adding{{}, {}, {}}, adding{}
				for step := range int32(6) {
					k := kinds[int(step)%len(kinds)]
					request := ask(d, step, k.push, k.pull, withLens, keys)
					want := whole.answer(decoded(t, request, d), d)
					got := through(t, r, worker, servers, request, d)
					if !slices.EqualFunc(got, want, bytes.Equal) {
						t.Errorf("%s %d is answered by\n%x, want\n%x", k.name, step, got, want)
					}
				}
			})
		}
	}
}

// ask makes a request as KVWorker does: with values 1, 2, 3 where it pushes.
func ask(d pslite.Dialect, timestamp int32, push, pull, withLens bool, keys []uint64) [][]byte {
	var m pslite.Meta
	m.Reset()
	m.Timestamp, m.Request, m.Push, m.Pull = timestamp, true, push, pull
	m.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
	data := [][]byte{pslite.AppendKeys(nil, keys), {}}
	var lens []byte
	var vals []float32
	for i := range keys {
		n := 2
		if withLens {
			n = 1 + i%3
		}
		lens = append(lens, byte(n), 0, 0, 0)
		for range n {
			vals = append(vals, float32(len(vals)+1))
		}
	}
	if push {
		data[1] = pslite.AppendFloat32(nil, vals)
	}
	if withLens {
		data = append(data, lens)
		m.DataTypes = append(m.DataTypes, pslite.Int32)
	}
	return append([][]byte{m.Append(nil, d)}, data...)
}

func decoded(t *testing.T, frames [][]byte, d pslite.Dialect) *pslite.Message {
	t.Helper()
	m := &pslite.Message{Data: frames[1:]}
	require.NoError(t, m.Meta.Decode(frames[0], d))
	require.NoError(t, m.Check())
	return m
}

// through sends a request for server 0 through the router, lets the servers
// answer the parts, the last first, and returns what the worker gets.
func through(t *testing.T, r *Router, worker int32, servers []adding, request [][]byte, d pslite.Dialect) [][]byte {
	t.Helper()
	m := decoded(t, request, d)
	if r.Request(worker, 0, &m.Meta, m.Keys(), d) {
		t.Fatal("a request with displaced keys passes")
	}
	require.NoError(t, r.Take(worker, 0, m, d))
	parts := r.Out()
	if len(parts) != len(servers) {
		t.Fatalf("%d parts, want one for each of %d servers", len(parts), len(servers))
	}
	for _, p := range slices.Backward(parts) {
		part := decoded(t, p.Frames, d)
		back := decoded(t, servers[p.Server].answer(part, d), d)
		if r.Answer(p.Server, worker, &back.Meta) {
			t.Fatal("the answer to a part passes")
		}
		require.NoError(t, r.TakeAnswer(p.Server, worker, back, d))
	}
	out := r.Out()
	if len(out) != 1 || !out[0].ToWorker || out[0].Server != 0 {
		t.Fatalf("the worker gets %d messages, want one of server 0", len(out))
	}
	return out[0].Frames
}
