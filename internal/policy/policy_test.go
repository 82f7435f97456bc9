package policy

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

func everything(t *testing.T) Allowed {
	t.Helper()
	a := require.Value(ParseAllowed(Keys))(t)
	return a
}

func annotation(key string) string { return Prefix + key }

// Each key takes what it should, and says of the rest what is wrong.
func TestReadTakesWhatEachKeyShould(t *testing.T) {
	all := everything(t)
	for _, c := range []struct {
		settings Settings
		want     Policy
		wrong    string // part of the only sentence; empty: none
	}{
		{Settings{}, Policy{}, ""},
		{Settings{Threshold: "0.99"}, Policy{Threshold: "0.99"}, ""},
		{Settings{Threshold: "9.9e-1", Move: "false", Observe: "true", Codec: "auto"}, Policy{Threshold: "0.99", Move: "false", Observe: "true", Codec: "auto"}, ""},
		{Settings{Threshold: "0"}, Policy{Threshold: "0"}, ""},
		{Settings{Threshold: "auto"}, Policy{Threshold: "auto"}, ""},
		{Settings{Threshold: "1"}, Policy{}, `psidecar.io/threshold: "1" is ignored: want a share`},
		{Settings{Threshold: "NaN"}, Policy{}, "want a share"},
		{Settings{Threshold: "-0.5", Move: "true"}, Policy{Move: "true"}, "want a share"},
		{Settings{Move: "yes"}, Policy{}, "want true or false"},
		{Settings{Observe: ""}, Policy{}, "want true or false"},
		{Settings{Codec: "zip"}, Policy{}, "want compact or auto or none"},
		{Settings{Aggregate: "true"}, Policy{}, "want host or none"},
		{Settings{Aggregate: "host"}, Policy{Aggregate: "host"}, ""},
		{Settings{"treshold": "0.9"}, Policy{}, "unknown setting psidecar.io/treshold: want one of job, observe"},
		{Settings{Job: "a/b"}, Policy{}, "want a name"},
		{Settings{Job: "train"}, Policy{}, ""},
	} {
		got, wrong := c.settings.Read(all, annotation)
		if got != c.want {
			t.Errorf("%v: %+v, want %+v", c.settings, got, c.want)
		}
		if len(wrong) != min(len(c.wrong), 1) || len(wrong) == 1 && !strings.Contains(wrong[0], c.wrong) {
			t.Errorf("%v: wrong is %q, want %q", c.settings, wrong, c.wrong)
		}
	}
}

// What the administrator does not allow is ignored, and said; by default that is
// what changes a job's results, or what else it depends on.
func TestAllowedIsWhatTheAdministratorSays(t *testing.T) {
	usual := require.Value(ParseAllowed(Default))(t)
	p, wrong := Settings{Threshold: "0.9", Codec: "none", Move: "true", Observe: "true"}.Read(usual, annotation)
	if p != (Policy{Codec: "none"}) || len(wrong) != 3 {
		t.Errorf("by default: %+v, %q", p, wrong)
	}
	for _, w := range wrong {
		if !strings.Contains(w, "the administrator allows codec,job (--allow-annotations)") {
			t.Errorf("it says %q", w)
		}
	}
	none, err := ParseAllowed([]string{"none"})
	if err != nil || len(none) != 0 {
		t.Errorf("none is %v, %v", none, err)
	}
	for _, bad := range [][]string{{"everything"}, {"none", Codec}, {""}} {
		if a, err := ParseAllowed(bad); err == nil {
			t.Errorf("%q is %v", bad, a)
		}
	}
}

func TestVariables(t *testing.T) {
	for _, k := range Keys {
		if got, ok := KeyOf(Variable(k)); !ok || got != k {
			t.Errorf("%s: %q, %v", Variable(k), got, ok)
		}
	}
	for _, v := range []string{"PSIDECAR_HTTP", "PSIDECAR_job", "DMLC_ROLE", "PSIDECAR_"} {
		if k, ok := KeyOf(v); ok {
			t.Errorf("%s is %q", v, k)
		}
	}
}

func TestOver(t *testing.T) {
	got := Policy{Codec: "none"}.Over(Policy{Codec: "auto", Threshold: "0.5"})
	if got != (Policy{Codec: "none", Threshold: "0.5"}) {
		t.Errorf("%+v", got)
	}
}

// The nearer to who named the job, the better; and a name that cannot be one is none.
func TestClaimOfTheNearestIsTheBest(t *testing.T) {
	all, none := everything(t), Allowed{}
	long := strings.Repeat("x", maxName+1)
	for _, c := range []struct {
		owner, variable, annotation string
		allowed                     Allowed
		want                        string
		from                        Source
	}{
		{"", "", "", all, "", Scheduler},
		{"train", "", "", all, "ns/train", Owner},
		{"train", "ctr", "", all, "ns/ctr", Variables},
		{"train", "ctr", "ads", all, "ns/ads", Annotation},
		{"train", "ctr", "ads", none, "ns/train", Owner},
		{"train", "other/ctr", "", all, "ns/train", Owner},
		{"train", "", "10.0.0.1:9091", all, "ns/train", Owner},
		{long, "", "", all, "", Scheduler},
	} {
		got, ok := ClaimOf("ns", c.owner, Settings{Job: c.annotation}, Settings{Job: c.variable}, c.allowed)
		if ok != (c.want != "") || ok && (got.Qualified() != c.want || got.From != c.from) {
			t.Errorf("%+v: %+v, %v", c, got, ok)
		}
	}
	for uid, want := range map[uint32]string{0: "a", 1000: "uid:1000/a"} {
		if got := (Claim{Tenant: User(uid), Name: "a"}).Qualified(); got != want {
			t.Errorf("user %d has %q", uid, got)
		}
	}
}

// The scheduler's word counts before anybody's who says that he belongs to the job,
// and the order in which they are heard does not matter.
func TestBestClaimDoesNotDependOnOrder(t *testing.T) {
	scheduler := Claim{Tenant: "ns", Name: "train", From: Owner, Role: "scheduler", Authority: true}
	evil := Claim{Tenant: "evil", Name: "a", From: Annotation, Role: "scheduler"}
	worker := Claim{Tenant: "ns", Name: "workers", From: Owner, Role: "worker"}
	server := Claim{Tenant: "ns", Name: "servers", From: Owner, Role: "server"}
	said := Claim{Tenant: "ns", Name: "said", From: Variables, Role: "worker"}
	for _, c := range []struct {
		all  []Claim
		want Claim
	}{
		{[]Claim{scheduler, evil, worker}, scheduler},
		{[]Claim{worker, server}, server},
		{[]Claim{worker, server, said}, said},
	} {
		for range c.all {
			c.all = append(c.all[1:], c.all[0])
			if got, ok := Best(c.all); !ok || got != c.want {
				t.Errorf("of %+v: %+v", c.all, got)
			}
		}
	}
	if c, ok := Best(nil); ok {
		t.Errorf("of none: %+v", c)
	}
}

// Runs of one job have its name one after the other; of two at a time the first has
// it, and the other once that has ended.
func TestAssignANameToOneRunAtATime(t *testing.T) {
	const a, b, c = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"
	for _, x := range []struct {
		name string
		jobs []Named
		want map[string]Title
	}{
		{"no claim", []Named{{a, "", 1, true}, {b, "", 1, false}}, map[string]Title{a: {a, "", true}, b: {b, "", true}}},
		{"one", []Named{{a, "n", 1, true}}, map[string]Title{a: {"n", "", true}}},
		{"a second run", []Named{{a, "n", 1, false}, {b, "n", 2, true}}, map[string]Title{a: {"n", "", false}, b: {"n", "", true}}},
		{"two that have ended", []Named{{b, "n", 2, false}, {a, "n", 1, false}}, map[string]Title{a: {"n", "", false}, b: {"n", "", true}}},
		{"two at a time", []Named{{b, "n", 2, true}, {a, "n", 1, true}}, map[string]Title{a: {"n", "", true}, b: {"n@" + b, a, true}}},
		{"two at once", []Named{{b, "n", 1, true}, {a, "n", 1, true}}, map[string]Title{a: {"n", "", true}, b: {"n@" + b, a, true}}},
		{"three, of which the first has ended", []Named{{a, "n", 1, false}, {b, "n", 2, true}, {c, "n", 3, true}},
			map[string]Title{a: {"n", "", false}, b: {"n", "", true}, c: {"n@" + c, b, true}}},
	} {
		for range x.jobs {
			x.jobs = append(x.jobs[1:], x.jobs[0])
			if got := Assign(x.jobs); !reflect.DeepEqual(got, x.want) {
				t.Errorf("%s: %+v, want %+v", x.name, got, x.want)
			}
		}
	}
}

// At most one job that is current has a name, whatever is claimed.
func FuzzAssign(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6})
	f.Fuzz(func(t *testing.T, text []byte) {
		byScheduler := map[string]Named{}
		for i := 0; i+1 < len(text); i += 2 {
			scheduler := string('a' + rune(text[i]%8))
			byScheduler[scheduler] = Named{scheduler, []string{"", "m", "n"}[text[i+1]%3], int64(text[i+1] / 16), text[i+1]&8 != 0}
		}
		titles := Assign(slices.Collect(maps.Values(byScheduler)))
		current := map[string]string{}
		for scheduler := range byScheduler {
			title, ok := titles[scheduler]
			if !ok {
				t.Fatalf("%s has no title", scheduler)
			}
			if other := current[title.Name]; title.Current && other != "" {
				t.Errorf("%s and %s are both %s", scheduler, other, title.Name)
			}
			if title.Current {
				current[title.Name] = scheduler
			}
		}
	})
}
