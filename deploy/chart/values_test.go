package chart

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/test/require"
)

// defaults are the chart's values.yaml.
func defaults(t *testing.T) map[string]any {
	t.Helper()
	text := require.Value(os.ReadFile("values.yaml"))(t)
	var values map[string]any
	require.NoError(t, yaml.Unmarshal(text, &values))
	return values
}

// set returns the values with one replaced, as helm's --set does.
func set(values map[string]any, path string, v any) map[string]any {
	values = maps.Clone(values)
	name, rest, deeper := strings.Cut(path, ".")
	if deeper {
		inner, _ := values[name].(map[string]any)
		v = set(inner, rest, v)
	}
	values[name] = v
	return values
}

// everyKey is what --allow-annotations takes.
func everyKey() (keys []any) {
	for _, k := range policy.Keys {
		keys = append(keys, k)
	}
	return keys
}

// TestSchema: values.yaml is as its schema says, and so is what the schema is to
// let through; what would give pods that do not start is refused.
func TestSchema(t *testing.T) {
	schema := require.Value(jsonschema.NewCompiler().Compile("values.schema.json"))(t)
	all := defaults(t)
	if err := schema.Validate(all); err != nil {
		t.Fatalf("values.yaml: %v", err)
	}
	for _, tc := range []struct {
		path  string
		value any
		ok    bool
	}{
		{"threshold", 0.99, true}, {"threshold", "0.99", true}, {"threshold", ".5", true}, {"threshold", 0, true},
		{"threshold", 1, false}, {"threshold", -0.1, false}, {"threshold", "99", false}, {"threshold", true, false},
		{"thresholdLifespan", 1, true}, {"thresholdLifespan", 0, false},
		{"slim", "0.3,0.1", true}, {"slim", "0.3,0.1,20", true}, {"slim", "0.3", false}, {"slim", "a,b", false},
		{"quantize", 8, true}, {"quantize", 9, false}, {"quantize", -1, false},
		{"pullThreshold", 0.95, true}, {"pullThreshold", "0.95", true}, {"pullThreshold", 1, false},
		{"thresholdActivations", 0.95, true}, {"thresholdActivations", 1, false},
		{"pullQuantize", 4, true}, {"pullQuantize", 1, false}, {"wire", "bf16", true}, {"wire", "int8", false},
		{"handler", "add", true}, {"handler", "sum", false},
		{"act", true, true}, {"act", "yes", false},
		{"agent.sample", "auto", true}, {"agent.sample", "16", true}, {"agent.sample", "0", false}, {"agent.sample", "most", false},
		{"agent.cpuBudget", 0.5, true}, {"agent.cpuBudget", "0.5", true}, {"agent.cpuBudget", 0, false},
		{"agent.httpPort", 0, false}, {"agent.httpPort", 65536, false},
		{"agent.extraArgs", []any{"--pprof"}, true}, {"agent.extraArgs", "--pprof", false},
		{"proxy.codecs", []any{"none"}, true}, {"proxy.codecs", []any{"zip"}, false},
		{"proxy.memory", 1024, false},
		{"planner.volumeClaim.size", "5Gi", true}, {"planner.volumeClaim.size", 5, false}, {"planner.volumeClaim.class", "a", false},
		{"tls.certManager.issuerRef.kind", "Issuer", true}, {"tls.certManager.issuerRef.kind", "Vault", false},
		{"appArmorProfile", map[string]any{"type": "Localhost", "localhostProfile": "p"}, true}, {"appArmorProfile", map[string]any{}, false},
		{"image.digest", "sha256:" + strings.Repeat("0", 64), true}, {"image.digest", "latest", false},
		{"agent.livenessProbe", map[string]any{"periodSeconds": 5}, true}, {"agent.livenessProbe", map[string]any{"periodSeconds": 0}, false}, {"proxy.readinessProbe", map[string]any{"exec": map[string]any{}}, false},
		{"serviceAccount.create", false, true}, {"serviceAccount.names.proxy", "a", false}, {"serviceAccount.name", "a", false},
		{"jobs.allowAnnotations", everyKey(), true}, {"jobs.allowAnnotations", []any{"sum"}, false},
		{"openshift", "always", true}, {"openshift", true, false}, {"seLinuxOptions", map[string]any{"type": "spc_t"}, true}, {"seLinuxOptions", map[string]any{"kind": "spc_t"}, false},
		{"image.repository", "", false}, {"image.pullPolicy", "Sometimes", false},
		{"proxy.enable", true, false}, {"treshold", 0.99, false}, {"tls.secret", "a", false}, // misspelt
	} {
		t.Run(fmt.Sprintf("%s=%v", tc.path, tc.value), func(t *testing.T) {
			err := schema.Validate(set(all, tc.path, tc.value))
			if tc.ok && err != nil || !tc.ok && err == nil {
				t.Errorf("the schema says %v", err)
			}
		})
	}
}

var used = regexp.MustCompile(`\.Values\.([A-Za-z.]+)`)

// templates are the files that helm renders.
func templates(t *testing.T) (files []string) {
	t.Helper()
	for _, pattern := range []string{"templates/*.*", "templates/tests/*"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no file is %s: %v", pattern, err)
		}
		files = append(files, found...)
	}
	return files
}

// TestValuesUsed: every value is used by a template, and every value that a
// template uses is there.
func TestValuesUsed(t *testing.T) {
	files := templates(t)
	uses := map[string]bool{}
	for _, file := range files {
		text := require.Value(os.ReadFile(file))(t)
		for _, m := range used.FindAllStringSubmatch(string(text), -1) {
			uses[m[1]] = true
		}
	}
	known := map[string]bool{}
	var walk func(prefix string, values map[string]any, whole bool)
	walk = func(prefix string, values map[string]any, whole bool) {
		for _, name := range slices.Sorted(maps.Keys(values)) {
			path := prefix + name
			known[path] = true
			inner, deeper := values[name].(map[string]any)
			if deeper {
				walk(path+".", inner, whole || uses[path])
			} else if !whole && !uses[path] {
				t.Errorf("no template uses %s", path)
			}
		}
	}
	walk("", defaults(t), false)
	for _, path := range slices.Sorted(maps.Keys(uses)) {
		if !known[path] {
			t.Errorf("a template uses %s, which values.yaml has not", path)
		}
	}
}
