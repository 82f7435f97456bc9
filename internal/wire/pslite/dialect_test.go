package pslite

import (
	"testing"
)

func TestDetectorBySequence(t *testing.T) {
	type step struct {
		wrote Dialect // who wrote the message
		want  Dialect
		sure  Certainty
	}
	times := func(n int, s step) (steps []step) {
		for range n {
			steps = append(steps, s)
		}
		return steps
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"dmlc is certain at once", []step{{DMLC, DMLC, Certain}, {DMLC, DMLC, Certain}}},
		{"2018 is presumed, then certain", append(times(15, step{DMLC2018, DMLC2018, Presumed}), step{DMLC2018, DMLC2018, Certain})},
		{"2017 is presumed, then certain", append(times(15, step{DMLC2017, DMLC2017, Presumed}), step{DMLC2017, DMLC2017, Certain})},
		{"byteps", append(times(15, step{BytePSRaw, BytePSRaw, Presumed}), step{BytePSRaw, BytePSRaw, Certain})},
		// A sender that leaves default values out looks older than it is.
		{"a newer field corrects", []step{{DMLC2017, DMLC2017, Presumed}, {DMLC2018, DMLC2018, Presumed}, {DMLC2017, DMLC2018, Presumed}, {DMLC, DMLC, Certain}, {DMLC2017, DMLC, Certain}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var det Detector
			if d, sure := det.Dialect(); d != Unknown || sure != None {
				t.Fatal(d, sure)
			}
			for i, s := range tc.steps {
				for k, m := range exampleMetas()[:1] {
					var got Meta
					d, err := det.Decode(m.Append(nil, s.wrote), &got)
					if err != nil || d != s.want {
						t.Fatalf("step %d, message %d: %s, %v; want %s", i, k, d, err, s.want)
					}
				}
				if d, sure := det.Dialect(); d != s.want || sure != s.sure {
					t.Fatalf("step %d: %s with certainty %d, want %s with %d", i, d, sure, s.want, s.sure)
				}
			}
		})
	}
}

func TestDetectorKeepsToOneDialect(t *testing.T) {
	m := exampleMetas()[0]
	for _, tc := range []struct{ first, then Dialect }{{DMLC, BytePSRaw}, {BytePSRaw, DMLC}, {DMLC2017, BytePSRaw}} {
		var det Detector
		var got Meta
		if _, err := det.Decode(m.Append(nil, tc.first), &got); err != nil {
			t.Fatal(err)
		}
		if _, err := det.Decode(nil, &got); err == nil {
			t.Errorf("an empty frame was taken as %s", tc.first)
		}
		if d, err := det.Decode(m.Append(nil, tc.then), &got); err == nil {
			t.Errorf("%s after %s was taken as %s", tc.then, tc.first, d)
		}
	}
}

// Every kind of message is told in every dialect, and reads the same.
func TestKindsInEveryDialect(t *testing.T) {
	want := []Kind{Push, Pull, PushAnswer, App, ControlKind + Kind(Barrier), ControlKind + Kind(Ack), ControlKind + Kind(AddNode)}
	for _, d := range []Dialect{DMLC, DMLC2018, DMLC2017, BytePSRaw} {
		for i, m := range exampleMetas() {
			var got Meta
			if found, err := Detect(m.Append(nil, d), &got); err != nil || found != d || got.Kind() != want[i] {
				t.Errorf("%s: %s, %v, kind %s; want %s", d, found, err, got.Kind(), want[i])
			}
		}
	}
}

func TestPlausible(t *testing.T) {
	var got Meta
	for _, d := range []Dialect{DMLC, DMLC2018, DMLC2017, BytePSRaw} {
		for i, m := range exampleMetas() {
			if found, ok := Plausible(m.Append(nil, d), len(m.DataTypes), &got); !ok || found != d {
				t.Errorf("%s message %d: %s, %v", d, i, found, ok)
			}
			if _, ok := Plausible(m.Append(nil, d), len(m.DataTypes)+1, &got); ok {
				t.Errorf("%s message %d passes with the wrong number of data frames", d, i)
			}
		}
	}
	for _, b := range [][]byte{nil, []byte("ps9"), []byte("GET / HTTP/1.1"), make([]byte, 40), {0x08, 1}} {
		if d, ok := Plausible(b, -1, &got); ok {
			t.Errorf("%q passes as %s", b, d)
		}
	}
}
