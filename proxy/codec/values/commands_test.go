package values

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/test/require"
)

// Of tables the first one's values are remembered, of steps all from the sixteenth number on, and
// of neither those of one with the other.
func TestCommands(t *testing.T) {
	var steps, alike []int32
	for i := range int32(40) {
		steps, alike = append(steps, 100+3*i), append(alike, 100+3*i, 100+3*i)
	}
	for name, c := range map[string]struct {
		commands []int32
		want     []int // the messages that meet what is remembered
	}{
		"one command":                     {[]int32{7, 7, 7}, []int{0, 1, 2}},
		"two tables":                      {[]int32{0, 1, 0, 1, 0}, []int{0, 2, 4}},
		"a second table later":            {[]int32{5, 5, 2, 2, 5, 2}, []int{0, 1, 4}},
		"sixteen tables, in order":        {append(steps[:16:16], steps[:3]...), []int{0, 16}},
		"sixteen tables, again and again": {slices.Repeat(steps[:16], 3), []int{0, 16, 32}},
		"numbers of steps":                {steps[:20], []int{0, 16, 17, 18, 19}},
		"several requests a step":         {alike[:36], []int{0, 1, 32, 33, 34, 35}},
		"steps, of which one comes late":  {append(steps[:18:18], steps[16], steps[18]), []int{0, 16, 17, 18, 19}},
	} {
		var is commands
		var got []int
		for i, command := range c.commands {
			if is.remembers(command) {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: messages %v, want %v", name, got, c.want)
		}
	}
}

// Values of one table never reach another one: not those that wait, of wide and narrow keys, also
// after the next proxy has taken them over, and not those that a worker is thought to have.
func TestTablesStayApart(t *testing.T) {
	const tables, most = 3, 15
	for name, c := range map[string]struct {
		rule        Rule
		keys, width int
		files, save bool    // the next proxy has it from files, or as it was saved
		layers      []Range // of the rule that follows
	}{
		"wide keys":               {rule: Rule{Unpulled: true, Threshold: 0.9}, keys: 2, width: 600},
		"narrow keys":             {rule: Rule{Unpulled: true, Threshold: 0.9}, keys: 200, width: 2},
		"wide keys, from files":   {rule: Rule{Unpulled: true, Threshold: 0.9}, keys: 2, width: 600, files: true},
		"narrow keys, from files": {rule: Rule{Unpulled: true, Threshold: 0.9}, keys: 200, width: 2, files: true},
		"narrow keys, saved":      {rule: Rule{Unpulled: true, Threshold: 0.9}, keys: 200, width: 2, save: true},
		"layers changed":          {rule: Rule{Unpulled: true, Threshold: 0.9}, keys: 200, width: 2, layers: []Range{{0, 99}, {100, 199}}},
		"pulled, wide keys":       {rule: Rule{PullThreshold: 0.9}, keys: 2, width: 600},
		"pulled, narrow keys":     {rule: Rule{PullThreshold: 0.9}, keys: 200, width: 2},
		"quantized pulls":         {rule: Rule{PullQuantize: 4}, keys: 2, width: 600},
		"slim pulls":              {rule: Rule{Slim: &Slim{Alpha: 0.3, Epsilon: 0.1}}, keys: 2, width: 600},
		"slim pulls by change":    {rule: Rule{Slim: &Slim{Alpha: 0.3, Epsilon: 0.1, Changes: true}}, keys: 2, width: 600},
	} {
		t.Run(name, func(t *testing.T) {
			folder, saved := t.TempDir(), filepath.Join(t.TempDir(), "values")
			e := newEnds(t, c.rule)
			next := func() *Codec {
				o := Options{Compact: compact.DefaultLimits, Rules: []Rule{c.rule}, Adds: true}
				if c.files {
					o.Folder = folder
				}
				one := require.Value(New(o))(t)
				return one
			}
			e.worker = next()
			pulls := !c.rule.keeps()
			dial := func() *way {
				if pulls {
					return e.dial(t, e.server, e.worker, "ps8")
				}
				return e.dial(t, e.worker, e.server, "ps9")
			}
			w, r := dial(), rand.New(rand.NewPCG(1, 1))
			var sent, came [tables][]float64
			for i := range sent {
				sent[i], came[i] = make([]float64, c.keys*c.width), make([]float64, c.keys*c.width)
			}
			stamp := int32(0)
			carry := func(table int) {
				// Each table has numbers of its own size.
				q := request{timestamp: stamp, head: int32(table), push: !pulls, pull: pulls, answer: pulls}
				stamp++
				for k := range c.keys {
					q.keys = append(q.keys, uint64(k))
				}
				for i := range c.keys * c.width {
					q.vals = append(q.vals, float32((16+r.IntN(most))<<(6*table)))
					sent[table][i] += float64(q.vals[i])
				}
				for i, v := range floats(w.carry(t, q.frames())[2]) {
					came[table][i] += float64(v)
					switch unit := float64(int(1) << (6 * table)); {
					case pulls && (float64(v) < 8*unit || float64(v) > 40*unit):
						t.Fatalf("an answer of table %d has %v", table, v)
					case !pulls && math.Mod(float64(v), unit) != 0, !pulls && table > 0 && v != q.vals[i]:
						t.Fatalf("a push of table %d has %v for %v", table, v, q.vals[i])
					}
				}
			}
			for range 3 {
				carry(0) // the others come later
			}
			if !pulls && e.worker.StillWaiting() == 0 {
				t.Fatal("nothing waits")
			}
			w.close()
			if c.files || c.save {
				_, err := e.worker.Save(saved)
				require.NoError(t, err)
				e.worker = next()
				if n, err := e.worker.Restore(saved); n != 1 || err != nil {
					t.Fatalf("%d streams were taken over, %v", n, err)
				}
			}
			c.rule.Layers = c.layers
			require.NoError(t, e.worker.SetRules([]Rule{c.rule}))
			w = dial()
			for range 5 {
				for table := range tables {
					carry((table + 1) % tables)
				}
			}
			if pulls {
				return
			}
			require.NoError(t, e.worker.SetRules(nil))
			for table := range tables {
				carry(table)
				for i := range sent[table] {
					if came[table][i] != sent[table][i] {
						t.Fatalf("of value %d of table %d %v came, of %v", i, table, came[table][i], sent[table][i])
					}
				}
			}
			if n := e.worker.Counts().Reasons[ReasonCommands]; n == 0 {
				t.Error("no reason was counted")
			}
		})
	}
}
