package counts

import (
	"testing"
	"time"
)

// The last hour is there whole, the last minutes of it finely, in bounded memory.
func TestHourIsThereInBoundedMemory(t *testing.T) {
	o := DefaultLocalityOptions
	j := NewLocality(o)
	const seconds = 2 * 3600
	for s := range seconds {
		r := Request{Time: at(float64(s)), Timestamp: int32(s), Push: true}
		j.Ask(r)
		j.Use(r.Time, Batch{Keys: []uint64{uint64(s % 100)}, Each: Sums{Pushes: 1}})
		j.Moved(r, true, 1000, false, false)
		r.Time += int64(time.Millisecond)
		j.Answer(r)
		if len(j.ring) > o.Intervals {
			t.Fatalf("%d intervals after %d s, at most %d are kept", len(j.ring), s, o.Intervals)
		}
	}
	end := at(seconds)
	for _, tc := range []struct {
		name     string
		from, to time.Duration // before the end
		slack    int           // messages more than asked for
	}{
		{"the hour", time.Hour, 0, 90},
		{"half an hour of it", time.Hour, 30 * time.Minute, 90},
		{"the last minute", time.Minute, 0, 10},
	} {
		v := j.Between(end-int64(tc.from), end-int64(tc.to))
		want := int((tc.from - tc.to) / time.Second)
		got := int(v.Bytes / 1000)
		if got < want-1-tc.slack || got > want+tc.slack {
			t.Errorf("%s: %d messages, want %d", tc.name, got, want)
		}
		heat := uint64(0)
		for _, row := range v.Heat.Rows {
			for _, cell := range row {
				heat += cell[Pushes]
			}
		}
		if times := v.Latency.Histogram().TotalCount(); times != int64(got) || heat != uint64(got) || v.Steps[0] > uint64(got) || v.Steps[0] < uint64(got)-1 {
			t.Errorf("%s: %d messages, but %d times, %d uses of keys, %d steps", tc.name, got, times, heat, v.Steps[0])
		}
	}
	if c := j.Counted(); c.Bytes != seconds*1000 || c.ByServer[0] != c.Bytes || c.Steps[0] != seconds {
		t.Errorf("in all: %+v", c)
	}
	oldest := j.ring[0]
	if ago := time.Duration(end - oldest.End); ago > o.Kept+o.Coarse {
		t.Errorf("the oldest interval ended %v ago", ago)
	}
}
