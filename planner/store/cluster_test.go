package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// cluster is an API server as far as ConfigMaps of a namespace and one Lease
// go: versions, preconditions, the limit of an object's size.
type cluster struct {
	mu      sync.Mutex
	objects map[string]*corev1.ConfigMap
	version int
	holder  *planner // of the Lease
	term    int64
	writes  int
}

// planner is a client of the cluster, whose requests may fail.
type planner struct {
	*cluster
	// after is how many writes succeed before one fails; below 0: all do.
	after int
	// applied: the failing write is done all the same, its answer is lost.
	applied bool
	late    func() // a write that is still under way when it has failed
}

var (
	errNoAnswer = errors.New("no answer")
	resource    = schema.GroupResource{Resource: "configmaps"}
)

func newCluster() *cluster { return &cluster{objects: map[string]*corev1.ConfigMap{}} }

// elect gives the Lease to a new planner.
func (c *cluster) elect() *planner {
	p := &planner{cluster: c, after: -1}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holder = p
	c.term++
	return p
}

func (p *planner) holds(context.Context) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holder != p {
		return 0, errors.New("the Lease is another's")
	}
	return p.term, nil
}

// write does a write, or does not.
func (p *planner) write(do func() (*corev1.ConfigMap, error)) (*corev1.ConfigMap, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes++
	if p.after != 0 {
		p.after--
		return do()
	}
	p.after = -1
	if p.applied {
		do()
	} else if p.late == nil {
		p.late = func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			do()
		}
	}
	return nil, errNoAnswer
}

func (c *cluster) keep(m *corev1.ConfigMap) *corev1.ConfigMap {
	m = m.DeepCopy()
	c.version++
	m.ResourceVersion = strconv.Itoa(c.version)
	c.objects[m.Name] = m
	return m.DeepCopy()
}

func check(m *corev1.ConfigMap) error {
	size := 0
	for key, value := range m.BinaryData {
		if wrong := validation.IsConfigMapKey(key); len(wrong) > 0 {
			return fmt.Errorf("key %q: %s", key, strings.Join(wrong, ", "))
		}
		size += len(value)
	}
	for _, value := range m.Data {
		size += len(value)
	}
	if size > 1<<20 {
		return fmt.Errorf("%s has %d bytes", m.Name, size)
	}
	if wrong := validation.IsDNS1123Subdomain(m.Name); len(wrong) > 0 {
		return fmt.Errorf("%q: %s", m.Name, strings.Join(wrong, ", "))
	}
	return nil
}

func (p *planner) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.ConfigMap, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.objects[name]; m != nil {
		return m.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(resource, name)
}

func (p *planner) List(_ context.Context, o metav1.ListOptions) (*corev1.ConfigMapList, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := &corev1.ConfigMapList{}
	key, value, _ := strings.Cut(o.LabelSelector, "=")
	names := slices.SortedFunc(maps.Keys(p.objects), cmp.Compare)
	for _, name := range names {
		if m := p.objects[name]; m.Labels[key] == value && name > o.Continue {
			if o.Limit > 0 && int64(len(list.Items)) == o.Limit {
				list.Continue = list.Items[o.Limit-1].Name
				break
			}
			list.Items = append(list.Items, *m.DeepCopy())
		}
	}
	return list, nil
}

func (p *planner) Create(_ context.Context, m *corev1.ConfigMap, _ metav1.CreateOptions) (*corev1.ConfigMap, error) {
	if err := check(m); err != nil {
		return nil, err
	}
	return p.write(func() (*corev1.ConfigMap, error) {
		if p.objects[m.Name] != nil {
			return nil, apierrors.NewAlreadyExists(resource, m.Name)
		}
		m := m.DeepCopy()
		m.UID = types.UID(strconv.Itoa(p.version))
		return p.keep(m), nil
	})
}

func (p *planner) Update(_ context.Context, m *corev1.ConfigMap, _ metav1.UpdateOptions) (*corev1.ConfigMap, error) {
	if err := check(m); err != nil {
		return nil, err
	}
	return p.write(func() (*corev1.ConfigMap, error) {
		switch was := p.objects[m.Name]; {
		case was == nil:
			return nil, apierrors.NewNotFound(resource, m.Name)
		case was.ResourceVersion != m.ResourceVersion:
			return nil, apierrors.NewConflict(resource, m.Name, errors.New("the object has been modified"))
		}
		return p.keep(m), nil
	})
}

func (p *planner) Delete(_ context.Context, name string, o metav1.DeleteOptions) error {
	_, err := p.write(func() (*corev1.ConfigMap, error) {
		was := p.objects[name]
		if was == nil {
			return nil, apierrors.NewNotFound(resource, name)
		}
		if *o.Preconditions.UID != was.UID || *o.Preconditions.ResourceVersion != was.ResourceVersion {
			return nil, apierrors.NewConflict(resource, name, errors.New("preconditions"))
		}
		delete(p.objects, name)
		return nil, nil
	})
	return err
}

func open(t testing.TB, p *planner) *KubeStore {
	t.Helper()
	s, err := OpenKube(context.Background(), p, "plans", p.holds)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func kubeContents(t interface {
	Helper()
	Fatal(...any)
}, s *KubeStore) map[string]string {
	t.Helper()
	all := map[string]string{}
	if err := s.Each(context.Background(), func(name string, value []byte) error { all[name] = string(value); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}
