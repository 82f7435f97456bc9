package jobs

import (
	"math"
	"reflect"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
)

func letters() []*letter {
	keys := []plan.Keys{{First: 0, Last: 0}, {First: 2, Last: 900}, {First: 1 << 60, Last: math.MaxUint64}}
	b := route.Batch{Mover: "198.18.0.1", Number: 1 << 62}
	return []*letter{
		{job: "198.18.0.1:9091", run: "0123456789abcdef", from: "198.18.0.1", to: "::1", store: "abc", version: 1 << 40, message: migrate.Message{Kind: migrate.Join}},
		{message: migrate.Message{Kind: migrate.Hold, Batch: b, Keys: keys}},
		{message: migrate.Message{Kind: migrate.Release, Batch: b, Owner: route.Unchanged}},
		{message: migrate.Message{Kind: migrate.Hold, Batch: b, Keys: keys, App: untold}},
		{message: migrate.Message{Kind: migrate.Quiet, Batch: b, Keys: keys, App: math.MaxInt32, Uses: []route.Use{
			{App: 3, Head: -1, Push: true, Lens: true, Type: pslite.Float, Most: 785, Width: route.Varies, Keys: keys[1:]},
			{App: 3, Head: 1 << 30, Pull: true, Strays: true, Type: pslite.Int64, Most: 1},
		}}},
		{message: migrate.Message{Kind: migrate.Holding, Last: route.Batch{Mover: "::1", Number: 1 << 60}, Held: []migrate.Held{{Batch: b, Keys: keys}, {Batch: b}}}},
	}
}

func TestLetters(t *testing.T) {
	var stream []byte
	for _, l := range letters() {
		stream = l.append(stream)
	}
	p := postOf(stream, newPostRoom(largeMemory, letterMemory))
	for _, want := range letters() {
		if got, err := p.readLetter(t.Context()); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
		p.done()
	}
}

// FuzzLetter: whatever comes, a letter that is parsed is encoded to the same bytes.
func FuzzLetter(f *testing.F) {
	for _, l := range letters() {
		f.Add(l.append(nil)[4:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := parseLetter(b)
		if err != nil {
			return
		}
		again, err := parseLetter(l.append(nil)[4:])
		if err != nil || !reflect.DeepEqual(l, again) {
			t.Errorf("%+v becomes %+v, %v", l, again, err)
		}
	})
}
