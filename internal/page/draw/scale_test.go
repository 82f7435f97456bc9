package draw

import (
	"encoding/json"
	"slices"
	"testing"
)

// The cases of scale.json, which the page's tests check as well.
func TestCases(t *testing.T) {
	var file struct {
		Cases []struct {
			Least, Most, Low float64
			Marks            []float64
			Levels           [][2]float64
		}
	}
	if err := json.Unmarshal(definition, &file); err != nil || len(file.Cases) == 0 {
		t.Fatalf("%d cases: %v", len(file.Cases), err)
	}
	for _, tc := range file.Cases {
		s := ScaleBetween(tc.Least, tc.Most)
		if s.Low != tc.Low || !slices.Equal(s.Marks(), tc.Marks) {
			t.Errorf("%v to %v: from %v, marks %v, want %v, %v", tc.Least, tc.Most, s.Low, s.Marks(), tc.Low, tc.Marks)
		}
		for _, l := range tc.Levels {
			if got := s.Level(l[0]); got != int(l[1]) {
				t.Errorf("%v to %v: %v has level %d, want %v", tc.Least, tc.Most, l[0], got, l[1])
			}
		}
	}
}

// Counts that hardly differ look alike, those of a dense job do not look the same.
func TestDifferences(t *testing.T) {
	s := ScaleOf([][]uint64{{9058, 0}, {9088}})
	if apart := s.Level(9088) - s.Level(9058); apart > ScaleLevels/32 {
		t.Errorf("9,058 and 9,088 are %d levels apart", apart)
	}
	s = ScaleOf([][]uint64{{2400, 5000}, nil})
	if apart := s.Level(5000) - s.Level(2400); apart < ScaleLevels/2 {
		t.Errorf("2,400 and 5,000 are %d levels apart", apart)
	}
	if (ScaleOf(nil) != Scale{}) || ScaleOf(nil).Level(0) != 0 {
		t.Errorf("of nothing: %v", ScaleOf(nil))
	}
}

func TestColours(t *testing.T) {
	for _, dark := range []bool{false, true} {
		before := -1.0
		for i, c := range ScaleColours(dark) {
			light := 0.2126*float64(c.R) + 0.7152*float64(c.G) + 0.0722*float64(c.B)
			if !dark {
				light = 255 - light
			}
			if light < before {
				t.Fatalf("dark %v: level %d goes back", dark, i)
			}
			before = light
		}
	}
}
