package prerun

import (
	"slices"
	"strings"
	"testing"
)

func TestMachines(t *testing.T) {
	known := []Host{{"a", 1000, 8}, {"b", 0, 4}, {"c", 3000, 0}}
	for _, tc := range []struct {
		name            string
		names           []string
		k               int
		speed, capacity []float64
		fails           string
	}{
		{"all", nil, 3, []float64{1000, 2000, 3000}, []float64{8, 4, 6}, ""},
		{"in their order", []string{"c", "a"}, 2, []float64{3000, 1000}, []float64{8, 8}, ""},
		{"speed not known", []string{"b"}, 1, nil, []float64{4}, ""},
		{"cores not known", []string{"c"}, 1, []float64{3000}, nil, ""},
		{"others than machines", nil, 2, nil, nil, "knows 3 hosts"},
		{"too few names", []string{"a"}, 2, nil, nil, "1 hosts are named"},
		{"nobody", []string{"a", "d"}, 2, nil, nil, `no host "d"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			hosts, err := Machines(known, tc.names, tc.k)
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Errorf("it says %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := LinkSpeeds(hosts); !slices.Equal(got, tc.speed) {
				t.Errorf("speeds are %v, want %v", got, tc.speed)
			}
			if got := Capacities(hosts); !slices.Equal(got, tc.capacity) {
				t.Errorf("capacities are %v, want %v", got, tc.capacity)
			}
		})
	}
}
