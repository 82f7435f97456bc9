// Package chart tests the Helm chart's files: alerts, dashboard, values against
// their schema and the templates that use them, and whether the manifests were
// made of them. Whole charts are rendered, and given to an API server, by
// test/kubernetes.
package chart

//go:generate go run ../chartdoc --chart .

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// TestAlerts has promtool check the alerts and run their tests.
func TestAlerts(t *testing.T) {
	require.Program(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), "promtool", args...)
		cmd.Dir = "files"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// dashboard is what a panel must have to be of use.
type dashboard struct {
	UID, Title string
	Panels     []panel
	Templating struct{ List []struct{ Name string } }
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ H, W, X, Y int }
	Datasource               struct{ UID string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct{ RefID, Expr, LegendFormat string }
}

// TestDashboard: every panel has what it must have to be of use.
func TestDashboard(t *testing.T) {
	text := require.Value(os.ReadFile("files/dashboard.json"))(t)
	var d dashboard
	require.NoError(t, json.Unmarshal(text, &d))
	if d.UID == "" || d.Title == "" || len(d.Panels) == 0 {
		t.Fatalf("no dashboard: %q %q, %d panels", d.UID, d.Title, len(d.Panels))
	}
	ids := map[int]bool{}
	var taken [200][24]bool
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" {
			t.Errorf("panel %d %q: its number or name is not its own", p.ID, p.Title)
		}
		ids[p.ID] = true
		for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				if taken[y][x] {
					t.Fatalf("panel %q covers another", p.Title)
				}
				taken[y][x] = true
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || p.FieldConfig.Defaults.Unit == "" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("panel %q lacks description, unit, data source or a query", p.Title)
		}
		for _, q := range p.Targets {
			if q.LegendFormat == "" || strings.Contains(q.Expr, "rate(") && !strings.Contains(q.Expr, "$__rate_interval") {
				t.Errorf("panel %q: query %s has no legend, or a fixed interval", p.Title, q.Expr)
			}
		}
	}
}

var metricName = regexp.MustCompile(`\bpsidecar_[a-z_]+`)

// TestMetricsExist: what alerts and dashboard ask for is what the source
// serves.
func TestMetricsExist(t *testing.T) {
	source := goSource(t)
	asked := map[string]bool{}
	for _, file := range []string{"files/alerts.yaml", "files/dashboard.json", "../SECURITY.md"} {
		text := require.Value(os.ReadFile(file))(t)
		for _, name := range metricName.FindAllString(string(text), -1) {
			asked[name] = true
		}
	}
	if len(asked) < 20 {
		t.Errorf("only %d metrics are asked for", len(asked))
	}
	for name := range asked {
		base := strings.TrimSuffix(name, "_bucket")
		if !bytes.Contains(source, []byte(`"`+base+`"`)) && !bytes.Contains(source, []byte(`describe("`+strings.TrimPrefix(base, "psidecar_")+`"`)) {
			t.Errorf("%s is served by nothing", name)
		}
	}
}

// goSource is all source that serves metrics.
func goSource(t *testing.T) []byte {
	t.Helper()
	var all []byte
	for _, dir := range []string{"agent", "planner", "proxy", "internal", "cmd"} {
		err := filepath.WalkDir(filepath.Join("../..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			all = append(all, text...)
			return err
		})
		require.NoError(t, err)
	}
	return all
}

// TestFlagsExist: every flag that the chart and the systemd units use is one
// of the command's.
func TestFlagsExist(t *testing.T) {
	list := require.Value(os.ReadFile("../../cmd/psidecar/FLAGS.md"))(t)
	flags := map[string][]string{}
	for _, command := range strings.Split(string(list), "\n## psidecar ")[1:] {
		verb, tables, _ := strings.Cut(command, "\n")
		for _, f := range regexp.MustCompile("(?m)^\\| `--([a-z0-9-]+)`").FindAllStringSubmatch(tables, -1) {
			flags[verb] = append(flags[verb], f[1])
		}
	}
	used := 0
	for _, file := range templates(t) {
		text := require.Value(os.ReadFile(file))(t)
		command := ""
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if m := regexp.MustCompile(`^- (agent|proxy|planner|check|certs)$`).FindStringSubmatch(line); m != nil {
				command = m[1]
			}
			m := regexp.MustCompile(`^- --([a-z0-9-]+)`).FindStringSubmatch(line)
			if m == nil {
				continue
			}
			used++
			if m[1] != "config" && !slices.Contains(flags[command], m[1]) { // all commands have --config
				t.Errorf("%s: psidecar %s has no flag --%s", file, command, m[1])
			}
		}
	}
	if used < 20 {
		t.Errorf("only %d flags found in the templates", used)
	}
}
