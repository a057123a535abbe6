// Command kubernetes decodes manifests as the API server does: an unknown field is an error, and so is a value of another type. It prints
// the objects as one list of JSON.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func main() {
	if err := decode(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func decode(files []string) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	var all []runtime.Object
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		documents := yaml.NewYAMLReader(bufio.NewReader(file))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			object, _, err := decoder.Decode(document, nil, nil)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			all = append(all, object)
		}
		file.Close()
	}
	return json.NewEncoder(os.Stdout).Encode(all)
}
