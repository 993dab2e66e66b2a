// Command render prints what a Helm chart makes of values, for tests where there is no helm.
//
//	render CHART [values.yaml ...]      RELEASE, NAMESPACE, API_VERSIONS (a comma between) from the environment
//
// Objects go to standard output, the notes to standard error.
//
// It has what our chart uses of Helm: sprig, include, tpl, toYaml, fromYaml, required, lookup (which
// finds nothing, as in `helm template`), .Values, .Release, .Chart, .Files and .Capabilities; values files over the
// chart's, later ones winning, and null taking a key away. No subcharts, no hooks, no schema: that is checked by
// its own means.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"sigs.k8s.io/yaml"
)

type object = map[string]interface{}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func read(path string) object {
	bytes, err := os.ReadFile(path)
	check(err)
	values := object{}
	check(yaml.Unmarshal(bytes, &values))
	return values
}

// merge puts what is in `from` over what is in `into`, map by map.
func merge(into, from object) {
	for key, value := range from {
		below, isMap := value.(object)
		old, wasMap := into[key].(object)
		switch {
		case value == nil:
			delete(into, key)
		case isMap && wasMap:
			merge(old, below)
		default:
			into[key] = value
		}
	}
}

type files struct{ chart string }

func (f files) Get(name string) string {
	bytes, err := os.ReadFile(filepath.Join(f.chart, name))
	if err != nil {
		return ""
	}
	return string(bytes)
}

type apiVersions []string

func (a apiVersions) Has(name string) bool {
	for _, one := range a {
		if one == name {
			return true
		}
	}
	return false
}

func functions(all **template.Template) template.FuncMap {
	f := sprig.TxtFuncMap()
	delete(f, "env") // as Helm does: a chart sees nothing of the machine
	delete(f, "expandenv")
	f["toYaml"] = func(v interface{}) string {
		bytes, err := yaml.Marshal(v)
		check(err)
		return strings.TrimSuffix(string(bytes), "\n")
	}
	f["fromYaml"] = func(s string) object {
		values := object{}
		check(yaml.Unmarshal([]byte(s), &values))
		return values
	}
	f["include"] = func(name string, data interface{}) (string, error) {
		var out strings.Builder
		err := (*all).ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	f["tpl"] = func(text string, data interface{}) (string, error) {
		var out strings.Builder
		one, err := template.Must((*all).Clone()).New("tpl").Parse(text)
		if err == nil {
			err = one.Execute(&out, data)
		}
		return out.String(), err
	}
	f["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, fmt.Errorf("%s", message)
		}
		return value, nil
	}
	f["lookup"] = func(...string) object { return object{} }
	return f
}

func environment(name, fallback string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return fallback
}

func main() {
	if len(os.Args) < 2 {
		check(fmt.Errorf("usage: render CHART [values.yaml ...]"))
	}
	chart := os.Args[1]
	values := read(filepath.Join(chart, "values.yaml"))
	for _, path := range os.Args[2:] {
		merge(values, read(path))
	}
	about := read(filepath.Join(chart, "Chart.yaml"))
	described := object{}
	for key, value := range about { // Helm's are fields of a struct: Name, AppVersion
		described[strings.ToUpper(key[:1])+key[1:]] = value
	}
	data := object{
		"Values": values, "Chart": described, "Files": files{chart},
		"Release": object{"Name": environment("RELEASE", "incipit"), "Namespace": environment("NAMESPACE", "incipit"),
			"Service": "Helm", "IsInstall": true, "IsUpgrade": false, "Revision": 1},
		"Capabilities": object{"APIVersions": apiVersions(strings.Split(os.Getenv("API_VERSIONS"), ",")),
			"KubeVersion": object{"Version": "v1.32.0", "Major": "1", "Minor": "32"}},
	}
	var all *template.Template
	all = template.New("chart").Option("missingkey=zero").Funcs(functions(&all))
	paths, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	check(err)
	sort.Strings(paths)
	for _, path := range paths {
		bytes, err := os.ReadFile(path)
		check(err)
		template.Must(all.New(filepath.Base(path)).Parse(string(bytes)))
	}
	for _, path := range paths {
		name := filepath.Base(path)
		if strings.HasPrefix(name, "_") {
			continue
		}
		var out strings.Builder
		check(all.ExecuteTemplate(&out, name, data))
		text := strings.ReplaceAll(strings.TrimSpace(out.String()), "<no value>", "")
		if name == "NOTES.txt" { // for people
			fmt.Fprintln(os.Stderr, text)
		} else if text != "" {
			fmt.Printf("---\n# Source: %s\n%s\n", name, text)
		}
	}
}
